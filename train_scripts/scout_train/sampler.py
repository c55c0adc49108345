"""verl's replay buffer with what version 0.9.1 leaves out: a bound on refilling, lost members, a short poll.

DAPO's dynamic sampling (arXiv:2503.14476, eq. 11) drops groups whose members all have the same outcome and
draws new questions until the batch is full. verl filters and refills, but without a bound: a policy that is
always right (or always wrong) would generate for ever. Here a step generates at most
``max_num_gen_batches`` batches and then ends with an error that says so.

verl refills two groups for one and throws away what it does not need. Here such surplus groups stay, are
trained first in the next step, and that step generates so many fewer. They were sampled by older weights:
after at most ``carry_max_steps`` steps they are dropped. Their importance ratio is right because the old
log-probabilities are those of sampling (``bypass_mode``; anything else is refused with carrying), and the
clipping is that of the recipe.

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
        max_infra_error_share: of a step's trajectories that may be lost.
        carry_max_steps: most steps between sampling a surplus group and training it; 0: none is carried.
    """

    poll_interval_s: float
    train_batch_size: int
    group_size: int
    filter_groups: bool
    metric: str
    max_num_gen_batches: int
    max_inflight_gen_batches: int
    max_infra_error_share: float
    carry_max_steps: int

    def __post_init__(self) -> None:
        if self.filter_groups and self.max_num_gen_batches < 1:
            raise UserError(
                "algorithm.filter_groups.max_num_gen_batches",
                self.max_num_gen_batches,
                "must be at least 1: dynamic sampling without a bound may never end",
            )
        if self.carry_max_steps < 0:
            raise UserError("scout.sampler.carry_max_steps", self.carry_max_steps, "must be at least 0")
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
    carried_in: int = 0
    too_old: int = 0


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
        self._surplus: set[str] = set()
        self.counts = StepCounts(generated=self.options.train_batch_size)

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
        planned, lost = self.counts.generated * self.options.group_size, self.counts.lost_trajectories
        if lost > self.options.max_infra_error_share * planned:
            raise UnfilledStepError(
                f"{lost} of {planned} trajectories of step {global_steps} were lost, more than "
                f"{self.options.max_infra_error_share:.0%}: is the tool server up? "
                f"(scout.sampler.max_infra_error_share)"
            )
        uniform = {u: self._seen[u] for u in terminal & self._seen.keys() if self._seen[u] is not None}
        return (
            set(),
            set(uniform),
            terminal & self._lost,
            Counter(v for v in uniform.values() if v is not None),
        )

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

    # -- surplus groups --------------------------------------------------------------------------------

    def begin_step(self, global_steps: int) -> int:
        """Drop surplus groups that are too old; return how many new groups the step must generate."""
        self._sync_metadata_from_transfer_queue()
        steps = self.prompt_global_steps["train"]
        kept = {uid for uid in self._surplus if uid in steps}
        old = {uid for uid in kept if global_steps - steps[uid] > self.options.carry_max_steps}
        super()._clear_groups("train", old)
        carried = kept - old
        self._seen = dict.fromkeys(carried)
        self._surplus = set()
        fresh = max(self.options.train_batch_size - len(carried), 0)
        self.counts = StepCounts(generated=fresh, carried_in=len(carried), too_old=len(old))
        return fresh

    def adopt(self, uids: set[str]) -> None:
        """Surplus groups that a checkpoint brought back."""
        self._surplus |= uids

    @property
    def surplus(self) -> set[str]:
        """Groups that the last step sampled and did not train."""
        return set(self._surplus)

    def _clear_groups(self, partition_id: str, uids: set[str]) -> None:
        """verl's way to drop groups, evicted and surplus alike; usable ones among them are kept."""
        usable = {u for u in uids if u in self._seen and self._seen[u] is None}
        keep = usable if partition_id != "val" and self.options.carry_max_steps else set()
        self._surplus |= keep
        super()._clear_groups(partition_id, uids - keep)

    # ---------------------------------------------------------------------------------------------------

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, Any]]:
        """A batch of ``batch_size`` groups and this step's sampling metrics (``scout/groups_…``)."""
        if partition_id == "val":
            return super().sample(global_steps, partition_id, batch_size)  # type: ignore[no-any-return]
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        c = self.counts
        judged = len(self._seen) + len(self._lost) - c.carried_in
        ages = [global_steps - int(tag.get("global_steps", global_steps)) for tag in batch.tags]
        # verl counts the groups that this class keeps as thrown away.
        metrics.pop("training/filter_groups/discarded_surplus_samples", None)
        metrics.update(
            {
                "scout/groups_generated": c.generated,
                "scout/gen_batches": c.generated / self.options.train_batch_size,
                "scout/groups_evicted": c.uniform + c.lost,
                "scout/groups_lost": c.lost,
                "scout/groups_accept_rate": (judged - c.uniform - c.lost) / max(judged, 1),
                "scout/trajectories_lost": c.lost_trajectories,
                "scout/groups_carried_in": c.carried_in,
                "scout/groups_carried_out": len(self._surplus),
                "scout/groups_too_old": c.too_old,
                "scout/age_steps_max": max(ages, default=0),
            }
        )
        self._seen.clear()
        self._lost.clear()
        self.counts = StepCounts(generated=self.options.train_batch_size)
        return batch, metrics
