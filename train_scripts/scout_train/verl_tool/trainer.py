"""verl-tool's trainer with dynamic sampling, this project's metrics, and checkpoints to go on from.

Its ``fit`` is verl's own loop. Three of its parts are replaced by wrappers: the data loader plays the groups
of a step before ``fit`` sees their questions (`group_loader`), the rollout manager hands over what was played
(`rollouts`), and the logger completes the metrics of a step and writes ``metrics.jsonl``.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import verl.experimental.agent_loop
import verl.utils.tracking
from verl.protocol import DataProto
from verl_tool.trainer.ppo.ray_trainer import AgentRayPPOTrainer

from scout_train.errors import UnfilledStepError
from scout_train.metrics_log import MetricsLog
from scout_train.resume import old_checkpoints
from scout_train.settings import read_settings
from scout_train.traces import TraceLog
from scout_train.verl_tool.group_loader import AGE, GroupLoader
from scout_train.verl_tool.loops import Loops
from scout_train.verl_tool.rollouts import Rollouts
from scout_train.verl_tool.step_metrics import step_metrics
from scout_train.vital import VITAL, watch_run

verl.experimental.agent_loop.AgentLoopManager = Loops  # where ``init_workers`` looks it up, as verl-tool does
SURPLUS = "surplus.pt"  # in a checkpoint: groups and questions that were drawn and not trained


class ScoutVerlToolTrainer(AgentRayPPOTrainer):  # type: ignore[misc]
    """`AgentRayPPOTrainer` with the same algorithm: where batches come from and what is written differs."""

    async_rollout_manager: Any
    train_dataloader: Any

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, *args, **kwargs)
        self.settings = read_settings(config)
        self.run_dir = Path(self.settings.run.dir)
        self.traces = TraceLog(self.run_dir / "traces.jsonl")
        self._save_due, self._saved_step = False, -1

    def init_workers(self) -> None:
        super().init_workers()
        self.async_rollout_manager = Rollouts(self.async_rollout_manager, self.traces)
        self.train_dataloader = GroupLoader(self, self.train_dataloader)

    def compute_rollout_importance_weights_and_add_to_batch(self, batch: DataProto) -> Any:
        """Called between log-probabilities and advantages: a carried group's are those of sampling."""
        age = torch.as_tensor(batch.non_tensor_batch[AGE].astype(np.int64))[:, None]
        old, sampled = batch.batch["old_log_probs"], batch.batch["rollout_log_probs"]
        batch.batch["old_log_probs"] = torch.where(age > 0, sampled.to(old.dtype), old)
        return super().compute_rollout_importance_weights_and_add_to_batch(batch)

    # -- metrics ---------------------------------------------------------------------------------------

    def complete(self, data: dict[str, Any], step: int) -> dict[str, Any]:
        """The metrics of a step in the words of the engine verl."""
        if "training/global_step" not in data:
            return data  # a validation before the first step
        loader: GroupLoader = self.train_dataloader
        sampled = loader.source.counts.metrics(loader.source.options)
        told = self.traces.take(step).metrics() | sampled
        return step_metrics({**data, **told}, [g.traces for g in loader.trained], loader.took_s)

    def _attach_log(self) -> Any:
        """``fit`` makes its logger itself, from a class that it looks up when it starts."""
        trainer = self

        class Tracking(verl.utils.tracking.Tracking):  # type: ignore[misc]
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                super().__init__(*args, **kwargs)
                self.logger["scout"] = MetricsLog(trainer.run_dir / "metrics.jsonl", trainer._after_log)

            def log(self, data: dict[str, Any], step: int, backend: Any = None) -> None:
                super().log(trainer.complete(data, step), step, backend)

        return Tracking

    # -- checkpoints -----------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """verl saves before it logs; a run killed in between would lose the step's line for good."""
        self._save_due = True

    def _after_log(self, step: int) -> None:
        if self._save_due:
            self._save_due = False
            self._save_now()

    def _save_now(self) -> None:
        root = Path(self.config.trainer.default_local_dir)
        folder, loader = root / f"global_step_{self.global_steps}", self.train_dataloader
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(loader.state(), folder / SURPLUS)
        super()._save_checkpoint()  # writes data.pt last, which marks a whole checkpoint
        self._saved_step = self.global_steps
        for old in old_checkpoints(root, self.settings.run.keep_checkpoints):
            shutil.rmtree(old, ignore_errors=True)

    def _load_checkpoint(self) -> Any:
        found = super()._load_checkpoint()
        path = Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}" / SURPLUS
        if self.global_steps and path.is_file():
            # our own file, written by `_save_now`
            self.train_dataloader.restore(torch.load(path, weights_only=False))
        return found

    def fit(self) -> None:
        """Train to the last step.

        Raises:
            UnfilledStepError: a step could not be filled; the weights of the step before have been saved.
        """
        original, verl.utils.tracking.Tracking = verl.utils.tracking.Tracking, self._attach_log()
        try:
            watch_run()
            super().fit()
            VITAL.stop()
        except UnfilledStepError as error:
            VITAL.end_if_dead()  # without its worker there is nothing to save
            raise self._paused(error) from error
        except Exception:
            VITAL.end_if_dead()
            raise
        finally:
            verl.utils.tracking.Tracking = original

    def _paused(self, error: UnfilledStepError) -> UnfilledStepError:
        """Save the step before, and say what was lost and where the run goes on."""
        self.global_steps -= 1
        why = [f"lost: {self.traces.why_lost()}"] if self.traces.why_lost() else []
        try:
            if self.global_steps > 0 and self._saved_step != self.global_steps:
                self._save_now()
            if self.global_steps > 0:
                why.append(f"step {self.global_steps} is saved, the same command goes on from there")
        except ray.exceptions.RayError as lost:
            why.append(f"the weights could not be saved: {' '.join(str(lost).split())[:200]}")
        return UnfilledStepError("; ".join([str(error), *why]))
