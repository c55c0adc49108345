"""Engine verl_tool's dynamic sampling: what a step trains, against a count of everything that was played."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_train.errors import UnfilledStepError
from scout_train.verl_tool.groups import GroupOptions, GroupSource


@dataclass
class Group:
    number: int
    step: int
    outcomes: list[float]
    lost: list[str] = field(default_factory=list)


class World:
    """Plays groups of two at random and remembers them all."""

    def __init__(self, seed: int, p_right: float, p_lost: float = 0.0) -> None:
        self.rng, self.p_right, self.p_lost = random.Random(seed), p_right, p_lost
        self.played: list[Group] = []

    def play(self, n_groups: int, step: int) -> list[Group]:
        assert n_groups > 0
        new = []
        for _ in range(n_groups):
            outcomes = [float(self.rng.random() < self.p_right) for _ in range(2)]
            lost = ["http_503"] if self.rng.random() < self.p_lost else []
            new.append(Group(len(self.played) + len(new), step, outcomes, lost))
        self.played += new
        return new


def options(**changes: object) -> GroupOptions:
    base = {
        "train_batch_size": 4,
        "group_size": 2,
        "filter_groups": True,
        "max_num_gen_batches": 8,
        "max_infra_error_share": 1.0,
        "carry_max_steps": 1,
    }
    return GroupOptions(**(base | changes))  # type: ignore[arg-type]


@given(
    seed=st.integers(0, 10_000),
    p_right=st.floats(0.05, 0.95),
    p_lost=st.floats(0.0, 0.3),
    filtering=st.booleans(),
    carry=st.integers(0, 2),
)
def test_steps_hold_usable_groups_once_each_and_stay_below_the_bound(
    seed: int, p_right: float, p_lost: float, filtering: bool, carry: int
) -> None:
    world = World(seed, p_right, p_lost)
    o = options(filter_groups=filtering, carry_max_steps=carry)
    source = GroupSource(o, world.play)
    trained: list[int] = []
    for step in range(1, 6):
        before = len(world.played)
        try:
            batch = source.fill(step)
        except UnfilledStepError:
            assert len(world.played) - before == o.limit
            return
        new = world.played[before:]
        usable = [g for g in new if not g.lost and (not filtering or len(set(g.outcomes)) == 2)]
        c = source.counts
        assert len(batch) == 4 and all(not g.lost for g in batch)
        assert not filtering or all(len(set(g.outcomes)) == 2 for g in batch)
        assert c.generated == len(new) <= o.limit
        assert c.uniform + c.lost == len(new) - len(usable)
        assert c.lost_trajectories == sum(len(g.lost) for g in new)
        assert all(step - g.step <= carry for g in batch)
        assert c.age_steps_max == max(step - g.step for g in batch)
        if carry:  # nothing usable disappears before it is too old
            kept = {g.number for g in batch} | {g.number for g in source.surplus}
            assert {g.number for g in usable} <= kept
        else:
            assert source.surplus == []
        assert c.metrics(o)["scout/groups_accept_rate"] == pytest.approx(len(usable) / max(len(new), 1))
        trained += [g.number for g in batch]
    assert len(trained) == len(set(trained))


def test_a_policy_that_is_always_right_ends_with_the_bound_named() -> None:
    world = World(0, p_right=1.0)
    with pytest.raises(
        UnfilledStepError, match=r"32 groups .* only 0 of the 4 .*max_num_gen_batches \(now 8\)"
    ):
        GroupSource(options(), world.play).fill(1)
    assert len(world.played) == 32


def test_an_outage_ends_the_step_at_once() -> None:
    world = World(0, p_right=0.5, p_lost=1.0)
    source = GroupSource(options(max_infra_error_share=0.05), world.play)
    carried = [Group(-1, 2, [0.0, 1.0])]
    source.surplus = list(carried)
    with pytest.raises(UnfilledStepError, match=r"3 of 6 trajectories of step 3 were lost, more than 5%"):
        source.fill(3)
    assert len(world.played) == 3
    assert source.surplus == carried  # for the checkpoint that the run pauses with


def test_without_filtering_one_batch_is_played_and_lost_groups_are_replaced() -> None:
    world = World(0, p_right=1.0)
    assert len(GroupSource(options(filter_groups=False), world.play).fill(1)) == 4
    assert len(world.played) == 4
    world = World(3, p_right=1.0, p_lost=0.4)
    source = GroupSource(options(filter_groups=False), world.play)
    assert len(source.fill(1)) == 4
    assert source.counts.generated == 4 + source.counts.lost
