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

from scout_protocol.records import StopReason
from scout_train import surplus
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
        metrics.update(surroundings(self.config).traces.take(self.global_steps).metrics())
        generate = self.llm_server_manager.get_replicas()[0].server_handle.generate
        if hasattr(generate, "take_busy_s"):  # the in-process rollout; a server has metrics of its own
            metrics["scout/generate_s"] = generate.take_busy_s()
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
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"
        surplus.save(folder, self.replay_buffer.surplus, self.global_steps)
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
