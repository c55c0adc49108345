"""What this project adds to each of verl's trainers: turns for estimators, metrics, the order of saving."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from scout_protocol.records import StopReason
from scout_train import credit
from scout_train.agent_loop import surroundings
from scout_train.critic_worker import CriticWorker
from scout_train.metrics_log import MetricsLog
from scout_train.resume import old_checkpoints
from scout_train.settings import read_settings


def zero_variance_share(rewards: dict[str, list[float]]) -> float:
    """Share of groups whose members all have the same reward: their advantages, and gradients, are zero."""
    groups = [np.ptp(r) == 0.0 for r in rewards.values() if len(r) > 1]
    return float(np.mean(groups)) if groups else 0.0


class ScoutAdditions(PPOTrainer):  # type: ignore[misc]
    """To be inherited before one of verl's trainers; the algorithm stays that trainer's."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.settings = read_settings(config)
        self.run_dir = Path(self.settings.run.dir)
        self._save_due = False
        self._saved_step = -1

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        if Role.Critic in self.role_worker_mapping:
            self.role_worker_mapping[Role.Critic] = ray.remote(CriticWorker)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """verl's, which calls our estimator by its registered name; it hands estimators no turns, we do."""
        if self.config.algorithm.adv_estimator != credit.GIGPO:
            return super()._compute_advantage(batch, metrics)
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=["extra_fields"]
        )
        anchors = [getattr(value, "data", value)["anchors"] for value in data["extra_fields"]]
        with credit.turns(anchors, self.settings.credit.step_weight):
            return super()._compute_advantage(batch, metrics)

    # -- metrics ---------------------------------------------------------------------------------------

    def _attach_log(self) -> None:
        if "scout" not in self.logger.logger:
            self.logger.logger["scout"] = MetricsLog(self.run_dir / "metrics.jsonl", self._after_log)

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
        metrics.update(self._length_metrics(batch, real))
        # Without a second log-prob pass verl logs entropy only as the term of the loss.
        metrics.setdefault("actor/entropy", metrics.get("actor/entropy_loss"))

    def _length_metrics(self, batch: Any, real: list[str]) -> dict[str, float]:
        """verl's ``response_length/…`` counts what the tool returned; here it is the policy's own tokens.

        ``clip_ratio`` is the share of trajectories that ran out of room; verl compares with the longest row.
        """
        data = tq.kv_batch_get(keys=real, partition_id=batch.partition_id, select_fields=["extra_fields"])
        facts = [getattr(value, "data", value) for value in data["extra_fields"]]
        own = [int(f["policy_tokens"]) for f in facts]
        found = {
            "mean": float(np.mean(own)),
            "max": float(max(own)),
            "min": float(min(own)),
            "clip_ratio": float(np.mean([f["stop_reason"] == StopReason.LENGTH.value for f in facts])),
        }
        lengths = [int(tag["response_len"]) for tag in batch.tags if not tag.get("is_padding", False)]
        return {
            **{f"response_length/{k}": v for k, v in found.items()},
            **{f"response_length_non_aborted/{k}": v for k, v in found.items()},
            "scout/sequence_tokens": float(np.mean(lengths)),
            "scout/trained_policy_tokens": float(sum(own)),
        }

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
