"""verl's replay buffer with what version 0.9.1 leaves out: a bound on refilling, lost members, a short poll.

DAPO's dynamic sampling (arXiv:2503.14476, eq. 11) drops groups whose members all have the same outcome and
draws new questions until the batch is full. verl filters and refills, but without a bound: a policy that is
always right (or always wrong) would generate for ever. Here a step generates at most
``max_num_gen_batches`` batches and then ends with an error that says so.

Trajectories lost to an outage of the tool are not in the buffer at all (`scout_train.agent_loop`). A group
that keeps fewer than two members has no group statistics (verl would give a lone member its raw score as
advantage), so it is replaced like a uniform one; too many lost in one step end the run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from scout_protocol.errors import UserError
from scout_train.errors import UnfilledStepError

Reasons = tuple[set[str], set[str], set[str], "Counter[float]"]


@dataclass(frozen=True)
class SamplerOptions:
    """``trainer.v1.sampler.sampler_kwargs``, the only way into a custom sampler of verl 0.9.1.

    Attributes:
        poll_interval_s: how often to look for finished groups.
        train_batch_size: groups a step trains on.
        group_size: trajectories a group is made of, ``rollout.n``.
        filter_groups: dynamic sampling on or off.
        metric: the outcome that must differ within a group; a key of ``reward_extra_info``.
        max_num_gen_batches: most groups generated in a step, in batches.
        max_inflight_gen_batches: most groups generated at a time, in batches.
        max_infra_error_share: of a batch's trajectories that may be lost in one step.
    """

    poll_interval_s: float
    train_batch_size: int
    group_size: int
    filter_groups: bool
    metric: str
    max_num_gen_batches: int
    max_inflight_gen_batches: int
    max_infra_error_share: float

    def __post_init__(self) -> None:
        if self.filter_groups and self.max_num_gen_batches < 1:
            raise UserError(
                "algorithm.filter_groups.max_num_gen_batches",
                self.max_num_gen_batches,
                "must be at least 1: dynamic sampling without a bound may never end",
            )
        if not 0.0 < self.max_infra_error_share <= 1.0:
            raise UserError(
                "scout.sampler.max_infra_error_share",
                self.max_infra_error_share,
                "must be above 0, at most 1",
            )


@dataclass
class StepCounts:
    """What one step's sampling did, in groups unless said otherwise."""

    generated: int = 0
    uniform: int = 0
    lost: int = 0
    lost_trajectories: int = 0


class ScoutReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """`ReplayBuffer` of verl's sync trainer; see the module's docstring for what differs."""

    def __init__(self, sampler_kwargs: Any, refill_fn: Callable[[int], int], **kwargs: Any) -> None:
        self.options = SamplerOptions(**sampler_kwargs)
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            poll_interval=self.options.poll_interval_s,
            refill_fn=self._refill,
            filter_groups_metric=self.options.metric if self.options.filter_groups else None,
            train_batch_size=self.options.train_batch_size,
            gen_batch_size=1,
            max_inflight_gen_batches=self.options.max_inflight_gen_batches,
            sync_refill_failed_groups=True,
            **kwargs,
        )
        self._submit = refill_fn
        self._seen: dict[str, float | None] = {}  # outcome of uniform groups, None of the others
        self._lost: set[str] = set()
        self.counts = StepCounts()

    @property
    def limit(self) -> int:
        """Most groups one step may generate. Without filtering only lost groups are replaced: two batches."""
        batches = self.options.max_num_gen_batches if self.options.filter_groups else 2
        return batches * self.options.train_batch_size

    def _refill(self, n_groups: int) -> int:
        """What verl's loop calls to replace groups: as many as the bound still allows."""
        n_groups = min(n_groups, self.limit - self.counts.generated)
        if n_groups > 0:
            self.counts.generated += n_groups
            self._submit(n_groups)
        return max(n_groups, 0)

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Reasons:
        """``(stale, uniform, lost, {outcome: groups})``; verl evicts and replaces the union."""
        if partition_id == "val":
            return set(), set(), set(), Counter()
        terminal = self.finished_keys[partition_id] | self.failure_keys[partition_id]
        self._classify(partition_id, terminal - self._seen.keys() - self._lost)
        most = self.options.max_infra_error_share * self._batch_trajectories
        if self.counts.lost_trajectories > most:
            raise UnfilledStepError(
                f"{self.counts.lost_trajectories} of at least {self._batch_trajectories} trajectories "
                f"were lost in step {global_steps}: is the tool server up? "
                f"(scout.sampler.max_infra_error_share={self.options.max_infra_error_share})"
            )
        uniform = {u: self._seen[u] for u in terminal & self._seen.keys() if self._seen[u] is not None}
        return (
            set(),
            set(uniform),
            terminal & self._lost,
            Counter(v for v in uniform.values() if v is not None),
        )

    @property
    def _batch_trajectories(self) -> int:
        return self.options.train_batch_size * self.options.group_size

    def _classify(self, partition_id: str, new: set[str]) -> None:
        """Look once at every group that has just ended: its members, and whether their outcomes differ."""
        if not new:
            return
        members: dict[str, list[str]] = {uid: [] for uid in new}
        for key in self.partitions[partition_id]:
            if (uid := key.split("_")[0]) in members:
                members[uid].append(key)
        outcomes = self._outcomes(partition_id, [k for keys in members.values() for k in keys])
        for uid, keys in members.items():
            missing = self.options.group_size - len({k.split("_")[1] for k in keys})
            self.counts.lost_trajectories += missing
            if len(keys) < min(2, self.options.group_size):
                self._lost.add(uid)
                self.counts.lost += 1
                continue
            values = {outcomes[k] for k in keys} if self.options.filter_groups else set()
            uniform = len(values) == 1 and self.options.group_size > 1
            self._seen[uid] = values.pop() if uniform else None
            self.counts.uniform += uniform

    def _outcomes(self, partition_id: str, keys: list[str]) -> dict[str, float]:
        if not keys or not self.options.filter_groups:
            return {}
        fields = tq.kv_batch_get(keys=keys, partition_id=partition_id, select_fields=["extra_fields"])
        found = {}
        for key, value in zip(keys, fields["extra_fields"], strict=True):
            info = getattr(value, "data", value)["reward_extra_info"]
            if self.options.metric not in info:
                raise UserError(
                    "algorithm.filter_groups.metric",
                    self.options.metric,
                    f"choose one of {', '.join(sorted(info))}",
                )
            found[key] = float(info[self.options.metric])
        return found

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """Called by verl's loop whenever the batch is not complete yet: nothing more may be coming."""
        inflight = len(self.pending_keys[partition_id]) + len(self.running_keys[partition_id])
        if partition_id != "val" and inflight == 0:
            terminal = self.finished_keys[partition_id] | self.failure_keys[partition_id]
            usable = len({u for u in terminal & self._seen.keys() if self._seen[u] is None})
            short = self.options.train_batch_size - usable
            if short > 0 and self._refill(short) == 0:
                raise UnfilledStepError(self._exhausted(usable))
        return float(super()._wait_for_next_poll(partition_id, last_debug_time))

    def _exhausted(self, usable: int) -> str:
        c, o = self.counts, self.options
        return (
            f"{c.generated} groups were generated for one step and only {usable} of the {o.train_batch_size} "
            f"needed are usable ({c.uniform} had one outcome for all members, {c.lost} were lost): the "
            f"questions are too easy or too hard for this policy, or raise "
            f"algorithm.filter_groups.max_num_gen_batches (now {o.max_num_gen_batches})"
        )

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """A batch of ``batch_size`` groups and this step's sampling metrics (``scout/groups_…``)."""
        if partition_id == "val":
            return super().sample(global_steps, partition_id, batch_size)  # type: ignore[no-any-return]
        self.counts = StepCounts(generated=self.options.train_batch_size)
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        c = self.counts
        judged = len(self._seen) + len(self._lost)
        self._seen.clear()
        self._lost.clear()
        metrics.update(
            {
                "scout/groups_generated": c.generated,
                "scout/groups_evicted": c.uniform + c.lost,
                "scout/groups_lost": c.lost,
                "scout/groups_accept_rate": (judged - c.uniform - c.lost) / max(judged, 1),
                "scout/trajectories_lost": c.lost_trajectories,
            }
        )
        return batch, metrics
