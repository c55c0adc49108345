"""The groups of one step: dynamic sampling with a bound, surplus groups, and groups that an outage hurt.

The algorithm of `scout_train.sampler`, for a trainer that takes its batch from a data loader. verl-tool
accepts ``algorithm.filter_groups`` and reads it nowhere; here a step's groups are played before its trainer
sees the questions. A group counts as usable if no member was lost and, with filtering, if its members'
outcomes differ (DAPO, arXiv:2503.14476, eq. 11). Its trainer needs ``n`` rows for every question, so a group
that lost a member is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from scout_train.errors import UnfilledStepError


class Played(Protocol):
    """A question with its finished trajectories."""

    step: int  # whose weights sampled it
    outcomes: list[float]  # one per member; of the filter's metric
    lost: list[str]  # why members cannot be trained, e.g. ``connection:ClientConnectorError``


@dataclass(frozen=True)
class GroupOptions:
    """Names and meaning as in `scout_train.sampler.SamplerOptions`."""

    train_batch_size: int
    group_size: int
    filter_groups: bool
    max_num_gen_batches: int
    max_infra_error_share: float
    carry_max_steps: int

    @property
    def limit(self) -> int:
        """Most groups one step may generate. Without filtering only lost groups are replaced: two batches."""
        return (self.max_num_gen_batches if self.filter_groups else 2) * self.train_batch_size


@dataclass
class StepCounts:
    """What one step's sampling did, in groups unless said otherwise."""

    generated: int = 0
    uniform: int = 0
    lost: int = 0
    lost_trajectories: int = 0
    carried_in: int = 0
    carried_out: int = 0
    too_old: int = 0
    age_steps_max: int = 0

    def metrics(self, options: GroupOptions) -> dict[str, float]:
        """``scout/groups_…``, the words of the engine verl."""
        usable = self.generated - self.uniform - self.lost
        return {
            "scout/groups_generated": self.generated,
            "scout/gen_batches": self.generated / options.train_batch_size,
            "scout/groups_evicted": self.uniform + self.lost,
            "scout/groups_lost": self.lost,
            "scout/groups_accept_rate": usable / max(self.generated, 1),
            "scout/trajectories_lost": self.lost_trajectories,
            "scout/groups_carried_in": self.carried_in,
            "scout/groups_carried_out": self.carried_out,
            "scout/groups_too_old": self.too_old,
            "scout/age_steps_max": self.age_steps_max,
        }


@dataclass
class GroupSource:
    """Fills steps with groups.

    Args:
        play: ``play(n_groups, step)`` draws that many questions and plays them with the current weights.
        surplus: usable groups that were played and not trained yet.
    """

    options: GroupOptions
    play: Callable[[int, int], list[Any]]
    surplus: list[Any] = field(default_factory=list)
    counts: StepCounts = field(default_factory=StepCounts)

    def fill(self, step: int) -> list[Any]:
        """The groups to train in a step, exactly ``train_batch_size`` of them; oldest first.

        Raises:
            UnfilledStepError: too many trajectories were lost, or the bound was reached.
        """
        o = self.options
        fresh_enough = [g for g in self.surplus if step - g.step <= o.carry_max_steps]
        c = self.counts = StepCounts(too_old=len(self.surplus) - len(fresh_enough))
        chosen, rest = fresh_enough[: o.train_batch_size], fresh_enough[o.train_batch_size :]
        c.carried_in = len(chosen)
        usable: list[Any] = []
        while len(chosen) + len(usable) < o.train_batch_size:
            n_groups = self._next(o.train_batch_size - len(chosen) - len(usable))
            if n_groups < 1:
                raise UnfilledStepError(self._exhausted(len(chosen) + len(usable)))
            played = self.play(n_groups, step)
            c.generated += n_groups
            usable += [g for g in played if self._is_usable(g)]
            planned = c.generated * o.group_size
            if c.lost_trajectories > o.max_infra_error_share * planned:
                raise UnfilledStepError(
                    f"{c.lost_trajectories} of {planned} trajectories of step {step} were lost, more than "
                    f"{o.max_infra_error_share:.0%}: is the tool server up? "
                    f"(scout.sampler.max_infra_error_share)"
                )
        room = o.train_batch_size - len(chosen)
        chosen += usable[:room]
        # only now: a step that was not filled leaves what it found
        self.surplus = rest + (usable[room:] if o.carry_max_steps else [])
        c.carried_out = len(self.surplus)
        c.age_steps_max = max(step - g.step for g in chosen)
        return chosen

    def _next(self, short: int) -> int:
        """How many groups to play next; while filtering two for one that is missing, as verl does."""
        o, generated = self.options, self.counts.generated
        wanted = short if not generated or not o.filter_groups else min(2 * short, o.train_batch_size)
        return min(wanted, o.limit - generated)

    def _is_usable(self, group: Played) -> bool:
        self.counts.lost_trajectories += len(group.lost)
        if group.lost:
            self.counts.lost += 1
            return False
        uniform = self.options.filter_groups and len(set(group.outcomes)) < 2
        self.counts.uniform += uniform
        return not uniform

    def _exhausted(self, usable: int) -> str:
        c, o = self.counts, self.options
        return (
            f"{c.generated} groups were generated for one step and only {usable} of the {o.train_batch_size} "
            f"needed are usable ({c.uniform} had one outcome for all members, {c.lost} were lost): the "
            f"questions are too easy or too hard for this policy, or raise "
            f"algorithm.filter_groups.max_num_gen_batches (now {o.max_num_gen_batches})"
        )
