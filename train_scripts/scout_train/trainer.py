"""verl's synchronous trainer with this project's metrics, checkpoint order and in-process agent loops."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from scout_train.agent_loop import surroundings
from scout_train.errors import UnfilledStepError
from scout_train.manager import DirectClient
from scout_train.metrics_log import MetricsLog
from scout_train.resume import old_checkpoints
from scout_train.settings import read_settings


def zero_variance_share(rewards: dict[str, list[float]]) -> float:
    """Share of groups whose members all have the same reward: their advantages, and gradients, are zero."""
    groups = [np.ptp(r) == 0.0 for r in rewards.values() if len(r) > 1]
    return float(np.mean(groups)) if groups else 0.0


class ScoutTrainer(PPOTrainerSync):  # type: ignore[misc]
    """`PPOTrainerSync` with the same algorithm: only what is logged and saved, and when, differs."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.settings = read_settings(config)
        self.run_dir = Path(self.settings.run.dir)
        self._save_due = False
        self._saved_step = -1

    def _setup(self) -> None:
        super()._setup()
        # verl always starts a load balancer; `DirectClient` never asks it, so its process need not stay.
        ray.kill(self.llm_server_manager.global_load_balancer)

    def get_llm_client(self) -> Any:
        handle = self.llm_server_manager.get_replicas()[0].server_handle
        return self.llm_server_manager.get_client(DirectClient, server=handle)

    # -- metrics ---------------------------------------------------------------------------------------

    def _attach_log(self) -> None:
        if "scout" not in self.logger.logger:
            self.logger.logger["scout"] = MetricsLog(self.run_dir / "metrics.jsonl", self._after_log)

    def on_validate_begin(self) -> None:
        self._attach_log()

    def on_train_begin(self) -> None:
        self._attach_log()

    def _compute_metrics(self, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        metrics.update(surroundings(self.config).traces.take(self.global_steps).metrics())
        rewards: dict[str, list[float]] = defaultdict(list)
        real = [k for k, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
        data = tq.kv_batch_get(keys=real, partition_id=batch.partition_id, select_fields=["rm_scores"])
        for key, scores in zip(real, data["rm_scores"], strict=True):
            rewards[key.split("_")[0]].append(float(scores.sum()))
        metrics["scout/zero_variance_group_share"] = zero_variance_share(rewards)
        metrics["scout/trained_trajectories"] = len(real)
        # Without a second log-prob pass verl logs entropy only as the term of the loss.
        metrics.setdefault("actor/entropy", metrics.get("actor/entropy_loss"))

    # -- checkpoints -----------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """verl saves before it logs; a run killed in between would lose the step's line for good."""
        self._save_due = True

    def _after_log(self, step: int) -> None:
        if self._save_due:
            self._save_due = False
            self._save_now()

    def _save_now(self) -> None:
        super()._save_checkpoint()
        self._saved_step = self.global_steps
        for folder in old_checkpoints(
            Path(self.config.trainer.default_local_dir), self.settings.run.keep_checkpoints
        ):
            shutil.rmtree(folder, ignore_errors=True)

    def fit(self, agent_loop_manager: Any) -> None:
        """Train to the last step.

        Raises:
            UnfilledStepError: a step could not be filled; the weights of the step before have been saved.
        """
        try:
            super().fit(agent_loop_manager)
        except UnfilledStepError as error:
            self.global_steps -= 1
            why = surroundings(self.config).traces.last_failure
            try:
                if self.global_steps > 0 and self._saved_step != self.global_steps:
                    self._save_now()
            except ray.exceptions.RayError as lost:
                why = why or str(lost)
            raise UnfilledStepError(
                f"{error}; the last error of a rollout was {why}" if why else str(error)
            ) from error
