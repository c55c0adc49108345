"""verl-tool's trainer with dynamic sampling, this project's metrics, and checkpoints to go on from.

Its ``fit`` is verl's own loop. Three of its parts are replaced by wrappers: the data loader plays the groups
of a step before ``fit`` sees their questions, the rollout manager hands over what was played, and the logger
completes the metrics of a step and writes ``metrics.jsonl``.
"""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import ray
import torch
import verl.experimental.agent_loop
import verl.utils.tracking
from verl.protocol import DataProto, pad_dataproto_to_divisor, unpad_dataproto
from verl_tool.trainer.ppo.ray_trainer import AgentRayPPOTrainer

from scout_protocol.records import StopReason, Trace
from scout_train.errors import UnfilledStepError
from scout_train.metrics_log import MetricsLog
from scout_train.resume import old_checkpoints
from scout_train.settings import read_settings
from scout_train.traces import TraceLog
from scout_train.verl_tool.agent_loop import GROUP, LOST, MEMBER, STEP, TRACE
from scout_train.verl_tool.groups import GroupOptions, GroupSource
from scout_train.verl_tool.loops import Loops
from scout_train.verl_tool.trim import trim_padding
from scout_train.vital import VITAL, watch_run

verl.experimental.agent_loop.AgentLoopManager = Loops  # where ``init_workers`` looks it up, as verl-tool does
SURPLUS = "surplus.pt"  # in a checkpoint: groups and questions that were drawn and not trained
AGE = "scout_age_steps"
_VALIDATION_ROUNDS = 3


@dataclass
class Group:
    """A question with its trajectories; see `scout_train.verl_tool.groups.Played`."""

    question: DataProto  # one row, as the loader drew it
    rollouts: DataProto  # ``n`` rows
    traces: list[Trace]
    outcomes: list[float]
    lost: list[str]
    step: int


class Rollouts:
    """In the place of verl-tool's agent-loop manager: plays batches and hands over those that were played.

    Args:
        manager: the real one.
        log: where traces go; this process is their only writer.
    """

    def __init__(self, manager: Any, log: TraceLog) -> None:
        self.manager, self.log = manager, log
        self.ready: DataProto | None = None

    def generate_sequences(self, batch: DataProto) -> DataProto:
        """What the trainer's loop calls: the step's groups, or a validation that is played now."""
        if batch.meta_info.get("validate"):
            return self._validation(batch)
        if self.ready is None:
            raise RuntimeError("no groups were played for this step")
        out, self.ready = self.ready, None
        return out

    def play(self, batch: DataProto, step: int, train: bool) -> tuple[DataProto, list[Trace], list[str]]:
        """Play every row. Returns the rows with tokens, their traces, and why a row is lost ("" if not)."""
        workers = len(self.manager.agent_loop_workers)
        batch.non_tensor_batch[STEP] = np.array([step] * len(batch), dtype=object)
        padded, n_padding = pad_dataproto_to_divisor(batch, workers)
        out = unpad_dataproto(self.manager.generate_sequences(padded), n_padding)
        out.meta_info = {"reward_extra_keys": out.meta_info["reward_extra_keys"]}
        fields = out.non_tensor_batch
        traces = [msgspec.json.decode(raw, type=Trace) for raw in fields.pop(TRACE)]
        lost = [str(why) for why in fields.pop(LOST)]
        for trace in traces:
            self.log.write(trace, train)
        return out, traces, lost

    def _validation(self, batch: DataProto) -> DataProto:
        """All rows whole: one that an outage ended is no wrong answer, it is played again."""
        step = int(batch.meta_info["global_steps"])
        name_members(batch, 1)
        out, _, lost = self.play(batch, step, train=False)
        for _ in range(_VALIDATION_ROUNDS):
            again = [i for i, why in enumerate(lost) if why]
            if not again:
                break
            fresh, _, why = self.play(batch[np.array(again)], step, train=False)
            for place, reason in zip(again, why, strict=True):
                lost[place] = reason
            order = np.arange(len(batch))
            order[again] = len(batch) + np.arange(len(again))
            out = DataProto.concat([out, fresh])[order]
        if any(lost):
            raise UnfilledStepError(
                f"validation lost {sum(map(bool, lost))} trajectories: is the tool server up?"
            )
        out.meta_info["timing"] = {}
        return out

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["manager"], name)


def name_members(batch: DataProto, group_size: int) -> None:
    """Number the rows of a batch: ``group_size`` neighbours are one group."""
    import uuid

    n_groups = len(batch) // group_size
    names = np.repeat([uuid.uuid4().hex for _ in range(n_groups)], group_size)
    batch.non_tensor_batch[GROUP] = names.astype(object)
    batch.non_tensor_batch[MEMBER] = np.array([i % group_size for i in range(len(batch))], dtype=object)


class GroupLoader:
    """In the place of the training data loader: one batch of questions a step, whose groups are played.

    Drawing goes round the data for ever. What was drawn and is not trained yet belongs to a checkpoint.
    """

    def __init__(self, trainer: ScoutVerlToolTrainer, loader: Any) -> None:
        self.trainer, self.loader = trainer, loader
        config, settings = trainer.config, trainer.settings
        groups = config.algorithm.filter_groups
        self.n = int(config.actor_rollout_ref.rollout.n)
        self.metric = str(groups.metric) if groups.enable else None
        self.source = GroupSource(
            GroupOptions(
                train_batch_size=int(config.data.train_batch_size),
                group_size=self.n,
                filter_groups=bool(groups.enable),
                max_num_gen_batches=int(groups.max_num_gen_batches),
                max_infra_error_share=settings.sampler.max_infra_error_share,
                carry_max_steps=settings.sampler.carry_max_steps,
            ),
            self._play,
        )
        self.pending: DataProto | None = None  # drawn, not played
        self.trained: list[Group] = []
        self.took_s = 0.0
        self.passes = 0  # over the data, before this one
        self._seed = int(config.data.seed or 0)
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["loader"], name)  # state_dict, load_state_dict, sampler

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rollouts = self.trainer.async_rollout_manager
        while True:
            start, step = time.perf_counter(), self.trainer.global_steps
            self.trained = self.source.fill(step)
            ages = np.repeat([step - g.step for g in self.trained], self.n)
            ready = DataProto.concat([g.rollouts for g in self.trained])
            ready.non_tensor_batch[AGE] = ages
            mode = self.trainer.config.actor_rollout_ref.actor.loss_agg_mode
            rollouts.ready = trim_padding(ready, keep_response=mode == "seq-mean-token-sum-norm")
            rollouts.ready.meta_info["timing"] = {}
            questions = DataProto.concat([g.question for g in self.trained])
            self.took_s = time.perf_counter() - start
            yield {**dict(questions.batch.items()), **questions.non_tensor_batch}

    def _draw(self, n_questions: int) -> DataProto:
        while self.pending is None or len(self.pending) < n_questions:
            drawn = DataProto.from_single_dict(dict(self._next_batch()))
            self.pending = drawn if self.pending is None else DataProto.concat([self.pending, drawn])
        found = self.pending[:n_questions]
        rest = len(self.pending) - n_questions
        self.pending = self.pending[n_questions:] if rest else None
        return found

    def _next_batch(self) -> Any:
        """The loader's next batch, round and round.

        The order of a pass is that of its number: verl's sampler would begin a resumed run with the order of
        the first pass.
        """
        while True:
            if self._batches is None:
                generator = getattr(self.loader.sampler, "generator", None)
                if generator is not None:
                    generator.manual_seed(self._seed + self.passes)
                self._batches = iter(self.loader)
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches, self.passes = None, self.passes + 1

    def state(self) -> dict[str, Any]:
        """What verl's own state of the loader leaves out; everything in it is older than the next step."""
        return {"surplus": self.source.surplus, "pending": self.pending, "passes": self.passes}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from `state`."""
        self.source.surplus, self.pending = state["surplus"], state["pending"]
        self.passes = state["passes"]

    def _play(self, n_groups: int, step: int) -> list[Group]:
        questions = self._draw(n_groups)
        batch = self.trainer._get_gen_batch(copy.deepcopy(questions)).repeat(self.n, interleave=True)
        batch.meta_info["global_steps"] = step
        name_members(batch, self.n)
        out, traces, lost = self.trainer.async_rollout_manager.play(batch, step, train=True)
        values = out.non_tensor_batch.get(self.metric) if self.metric else np.zeros(len(out))
        if values is None:
            raise KeyError(f"algorithm.filter_groups.metric: {self.metric} is no part of the reward")
        found = []
        for i in range(n_groups):
            rows = np.arange(i * self.n, (i + 1) * self.n)
            found.append(
                Group(
                    questions[np.array([i])],
                    out[rows],
                    [traces[j] for j in rows],
                    [float(values[j]) for j in rows],
                    [lost[j] for j in rows if lost[j]],
                    step,
                )
            )
        return found


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
        found = {
            **data,
            **self.traces.take(step).metrics(),
            **loader.source.counts.metrics(loader.source.options),
        }
        groups = loader.trained
        traces = [t for g in groups for t in g.traces]
        own = [t.n_policy_tokens or 0 for t in traces]
        rewards = [[float(t.score["total"]) for t in g.traces] for g in groups]
        lengths = {
            "mean": float(np.mean(own)),
            "max": float(max(own)),
            "min": float(min(own)),
            "clip_ratio": float(np.mean([t.stop_reason is StopReason.LENGTH for t in traces])),
        }
        for prefix in ("response_length", "response_length_non_aborted"):
            found |= {f"{prefix}/{name}": value for name, value in lengths.items()}
        found["prompt_length/clip_ratio"] = 0.0  # a prompt that does not fit is refused
        found["scout/sequence_tokens"] = float(
            np.mean([(t.n_policy_tokens or 0) + (t.n_tool_tokens or 0) for t in traces])
        )
        found["scout/trained_policy_tokens"] = float(sum(own))
        found["scout/trained_trajectories"] = len(traces)
        found["scout/zero_variance_group_share"] = float(np.mean([np.ptp(r) == 0.0 for r in rewards]))
        # Groups are played before verl's clock of the step starts.
        without_s = found["timing_s/step"]
        found["timing_s/gen"] = loader.took_s
        found["timing_s/step"] = found["perf/time_per_step"] = without_s + loader.took_s
        found["perf/throughput"] *= without_s / found["timing_s/step"]
        found.pop("timing_per_token_ms/gen", None)
        return found

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
