"""verl's trainer whose rollout has cards of its own (``--placement disaggregated``); needs accelerators.

Its replay buffer is verl's, which filters groups by ``algorithm.filter_groups`` but without a bound, and
carries surplus groups by itself. Trajectories of several versions of the weights share a step.
"""

from __future__ import annotations

from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from scout_train.trainer_additions import ScoutAdditions


class ScoutTrainerDisaggregated(ScoutAdditions, PPOTrainerSeparateAsync):  # type: ignore[misc]
    """`PPOTrainerSeparateAsync` with this project's metrics and order of saving."""

    def on_validate_begin(self) -> None:
        self._attach_log()
        super().on_validate_begin()

    def on_train_begin(self) -> None:
        self._attach_log()
        super().on_train_begin()
