"""verl's synchronous trainer: agent loops in its process, surplus groups, an end of unfilled steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ray
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from scout_train import surplus
from scout_train.agent_loop import surroundings
from scout_train.errors import UnfilledStepError
from scout_train.manager import DirectClient
from scout_train.trainer_additions import ScoutAdditions
from scout_train.vital import VITAL


class ScoutTrainer(ScoutAdditions, PPOTrainerSync):  # type: ignore[misc]
    """`PPOTrainerSync` with the same algorithm: only what is logged and saved, and when, differs."""

    def _setup(self) -> None:
        super()._setup()
        if self._in_process:
            # verl always starts a load balancer; `DirectClient` never asks it, so its process need not stay.
            ray.kill(self.llm_server_manager.global_load_balancer)

    @property
    def _in_process(self) -> bool:
        """Whether the rollout is one model inside the training worker, not servers to balance between."""
        return bool(self.config.actor_rollout_ref.rollout.name == "transformers")

    def get_llm_client(self) -> Any:
        if not self._in_process:
            return super().get_llm_client()
        handle = self.llm_server_manager.get_replicas()[0].server_handle
        return self.llm_server_manager.get_client(DirectClient, server=handle)

    def on_validate_begin(self) -> None:
        self._attach_log()

    def on_train_begin(self) -> None:
        self._attach_log()
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps - 1}"
        self.replay_buffer.adopt(surplus.load(folder))

    def prepare_step(self) -> dict[str, Any]:
        """Generate what surplus groups of the step before leave to generate."""
        fresh = self.replay_buffer.begin_step(self.global_steps)
        if fresh:
            self._add_prompts_to_generate(fresh)
        return {}

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        generate = self.llm_server_manager.get_replicas()[0].server_handle.generate
        if hasattr(generate, "take_busy_s"):  # the in-process rollout; a server has metrics of its own
            metrics["scout/generate_s"] = generate.take_busy_s()

    def _save_now(self) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        surplus.save(folder, self.replay_buffer.surplus, self.global_steps)
        super()._save_now()

    def fit(self, agent_loop_manager: Any) -> None:
        """Train to the last step.

        Raises:
            UnfilledStepError: a step could not be filled; the weights of the step before have been saved.
        """
        try:
            super().fit(agent_loop_manager)
        except UnfilledStepError as error:
            if VITAL.dead():
                raise  # without its worker there is nothing to save
            self.global_steps -= 1
            traces = surroundings(self.config).traces
            why = [f"lost: {traces.why_lost()}"] if traces.why_lost() else []
            if traces.last_failure:
                why.append(f"the last error of a rollout was {traces.last_failure}")
            try:
                if self.global_steps > 0 and self._saved_step != self.global_steps:
                    self._save_now()
                if self.global_steps > 0:
                    why.append(f"step {self.global_steps} is saved, the same command goes on from there")
            except ray.exceptions.RayError as lost:
                why.append(f"the weights could not be saved: {' '.join(str(lost).split())[:200]}")
            raise UnfilledStepError("; ".join([str(error), *why])) from error
