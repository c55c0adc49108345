"""Dynamic sampling on verl's real replay buffer. Only TransferQueue, a key-value store, is replaced."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from scout_protocol.errors import UserError


class Store:
    """A key-value store with TransferQueue's calls, and a rollout that answers at once from a script.

    ``script`` yields, per group in the order of generation, the outcome of each member; None stands for a
    member that an outage took away (it is not in the store at all).
    """

    def __init__(self, script: Any, delay_polls: int = 0) -> None:
        self.script = iter(script)
        self.tags: dict[str, dict[str, dict[str, Any]]] = {"train": {}, "val": {}}
        self.values: dict[str, dict[str, Any]] = {}
        self.refills: list[int] = []
        self.ids = itertools.count()
        self.step = 1
        self.delay, self.waiting = delay_polls, []  # type: ignore[var-annotated]

    def submit(self, n: int, partition: str = "train") -> int:
        for _ in range(n):
            uid = f"g{next(self.ids)}"
            self.tags[partition][uid] = {"is_prompt": True, "status": "running", "global_steps": self.step}
            self.waiting.append([self.delay, uid, next(self.script), partition])
        return n

    def refill(self, n: int) -> int:
        self.refills.append(n)
        return self.submit(n)

    def finish_due(self) -> None:
        for item in self.waiting:
            item[0] -= 1
        due = [w for w in self.waiting if w[0] < 0]
        self.waiting = [w for w in self.waiting if w[0] >= 0]
        for _, uid, outcomes, partition in due:
            for member, outcome in enumerate(outcomes):
                if outcome is not None:
                    key = f"{uid}_{member}_0"
                    self.tags[partition][key] = {
                        "status": "success",
                        "seq_len": 1,
                        "global_steps": self.tags[partition][uid]["global_steps"],
                    }
                    self.values[key] = {"reward_extra_info": {"acc": outcome}}
            self.tags[partition][uid]["status"] = "finished"

    # -- the part of transfer_queue's interface that a replay buffer uses --
    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, Any]]:
        self.finish_due()
        return {p: {k: dict(t) for k, t in tags.items()} for p, tags in self.tags.items()}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, Any]:
        return {"extra_fields": [self.values[k] for k in keys]}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self.tags[partition_id].pop(key, None)


Make = Callable[..., tuple[Any, Store]]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Make:
    """``make(script, group_size=4, batch=2, …)`` → the buffer and its store, with one batch submitted."""
    import transfer_queue as tq

    from scout_train.sampler import ScoutReplayBuffer

    def build(script: Any, *, delay_polls: int = 0, **options: Any) -> tuple[Any, Store]:
        store = Store(script, delay_polls)
        for name in ("kv_list", "kv_batch_get", "kv_clear"):
            monkeypatch.setattr(tq, name, getattr(store, name))
        kwargs = {
            "poll_interval_s": 0.0,
            "train_batch_size": 2,
            "group_size": 4,
            "filter_groups": True,
            "metric": "acc",
            "max_num_gen_batches": 4,
            "max_inflight_gen_batches": 1,
            "max_infra_error_share": 1.0,
            "carry_max_steps": 1,
        } | options
        buffer = ScoutReplayBuffer(
            sampler_kwargs=kwargs,
            refill_fn=store.refill,
            trainer_mode="sync",
            trainer_config={},
            max_off_policy_threshold=8,
            max_off_policy_strategy="drop",
        )
        store.submit(kwargs["train_batch_size"])
        return buffer, store

    return build


MIXED, RIGHT, WRONG = [1.0, 0.0, 0.0, 1.0], [1.0] * 4, [0.0] * 4


def groups(batch: Any) -> set[str]:
    return {key.split("_")[0] for key in batch.keys}


def test_uniform_groups_are_replaced_until_the_batch_is_full(make: Make) -> None:
    buffer, store = make(itertools.chain([RIGHT, MIXED, WRONG, MIXED], itertools.repeat(MIXED)))
    batch, metrics = buffer.sample(1, "train", 2)
    assert len(groups(batch)) == 2 and len(batch.keys) == 8
    outcomes = {
        g: {store.values[k]["reward_extra_info"]["acc"] for k in batch.keys if k.startswith(g + "_")}
        for g in groups(batch)
    }
    assert all(v == {0.0, 1.0} for v in outcomes.values())
    assert metrics["scout/groups_generated"] == 2 + sum(store.refills)
    assert metrics["scout/groups_evicted"] >= 1
    assert 0 < metrics["scout/groups_accept_rate"] < 1


def test_nothing_is_refilled_when_all_groups_are_mixed(make: Make) -> None:
    buffer, store = make(itertools.repeat(MIXED))
    batch, metrics = buffer.sample(1, "train", 2)
    assert store.refills == [] and metrics["scout/groups_accept_rate"] == 1.0
    assert len(batch.keys) == 8


def test_refilling_is_bounded_and_says_what_to_do(make: Make) -> None:
    from scout_train.errors import UnfilledStepError

    buffer, store = make(itertools.repeat(RIGHT), max_num_gen_batches=3)
    with pytest.raises(
        UnfilledStepError, match=r"6 groups were generated .*0 of the 2.*max_num_gen_batches \(now 3\)"
    ):
        buffer.sample(1, "train", 2)
    assert 2 + sum(store.refills) == 6


def test_the_bound_counts_per_step(make: Make) -> None:
    buffer, store = make(itertools.cycle([RIGHT, MIXED]), max_num_gen_batches=4)
    for step in range(1, 6):
        if step > 1:
            store.step = step
            store.submit(2)
        batch, metrics = buffer.sample(step, "train", 2)
        assert metrics["scout/groups_generated"] <= 8
        assert len(groups(batch)) == 2


def test_groups_still_running_at_the_bound_are_waited_for(make: Make) -> None:
    """The last allowed refill fills the batch; being at the bound must not end the run too early."""
    buffer, _ = make([RIGHT, MIXED, RIGHT, MIXED], delay_polls=2, max_num_gen_batches=2)
    batch, metrics = buffer.sample(1, "train", 2)
    assert len(groups(batch)) == 2 and metrics["scout/groups_generated"] == 4


def test_without_filtering_uniform_groups_are_trained(make: Make) -> None:
    buffer, store = make(itertools.repeat(RIGHT), filter_groups=False)
    batch, metrics = buffer.sample(1, "train", 2)
    assert len(batch.keys) == 8 and store.refills == [] and metrics["scout/groups_evicted"] == 0


@pytest.mark.parametrize("filter_groups", [True, False])
def test_a_group_that_an_outage_left_with_one_member_is_drawn_anew(make: Make, filter_groups: bool) -> None:
    lone, empty = [1.0, None, None, None], [None] * 4
    script = itertools.chain([lone, empty], itertools.repeat(MIXED))
    buffer, _ = make(script, filter_groups=filter_groups)
    batch, metrics = buffer.sample(1, "train", 2)
    assert not groups(batch) & {"g0", "g1"}
    assert metrics["scout/groups_lost"] == 2 and metrics["scout/trajectories_lost"] == 7


def test_a_group_with_some_members_lost_is_kept(make: Make) -> None:
    buffer, _ = make(itertools.repeat([1.0, 0.0, None, None]))
    batch, metrics = buffer.sample(1, "train", 2)
    assert (
        len(batch.keys) == 4 and metrics["scout/trajectories_lost"] == 4 and metrics["scout/groups_lost"] == 0
    )


def test_an_outage_ends_the_step_with_the_reason(make: Make) -> None:
    from scout_train.errors import UnfilledStepError

    buffer, _ = make(itertools.repeat([None, 1.0, 0.0, None]), max_infra_error_share=0.25)
    with pytest.raises(
        UnfilledStepError, match=r"4 of 8 trajectories of step 7 were lost, more than 25%.*tool server"
    ):
        buffer.sample(7, "train", 2)


def test_validation_is_never_filtered(make: Make) -> None:
    buffer, store = make(itertools.repeat(RIGHT))
    store.submit(3, "val")
    batch, _ = buffer.sample(1, "val", 3)
    assert len(batch.keys) == 12 and store.refills == []


def test_an_unknown_metric_names_the_ones_there_are(make: Make) -> None:
    buffer, _ = make(itertools.repeat(MIXED), metric="em")
    with pytest.raises(UserError, match="choose one of acc"):
        buffer.sample(1, "train", 2)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_num_gen_batches": 0},
        {"max_infra_error_share": 0.0},
        {"max_infra_error_share": 1.5},
        {"carry_max_steps": -1},
    ],
)
def test_options_without_a_bound_are_refused(make: Make, bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        make(itertools.repeat(MIXED), **bad)


# --- surplus groups: kept, trained first, never too old ------------------------------------------------


def next_step(buffer: Any, store: Store, step: int) -> int:
    """What the trainer does before a step: generate what the surplus leaves to generate."""
    store.step = step
    fresh = int(buffer.begin_step(step))
    store.submit(fresh)
    return fresh


def test_surplus_groups_are_trained_next_and_generated_less(make: Make) -> None:
    """Two uniform groups refill four; two of the four are needed, two stay."""
    buffer, store = make(itertools.chain([RIGHT, WRONG], itertools.repeat(MIXED)), max_inflight_gen_batches=2)
    first, metrics = buffer.sample(1, "train", 2)
    assert metrics["scout/groups_carried_out"] == 2 and metrics["scout/age_steps_max"] == 0
    waiting = {u for u, t in store.tags["train"].items() if t.get("is_prompt")}
    assert waiting == buffer.surplus and not waiting & groups(first)
    store.kv_clear(list(first.keys), "train")

    assert next_step(buffer, store, 2) == 0
    second, metrics = buffer.sample(2, "train", 2)
    assert groups(second) == waiting
    assert metrics["scout/groups_carried_in"] == 2 and metrics["scout/groups_generated"] == 0
    assert metrics["scout/age_steps_max"] == 1 and metrics["scout/groups_carried_out"] == 0
    assert metrics["scout/groups_evicted"] == 0


def test_a_part_of_the_batch_is_carried_and_the_rest_generated(make: Make) -> None:
    script = itertools.chain([RIGHT, MIXED], itertools.repeat(MIXED))  # one evicted, two for it: one too many
    buffer, store = make(script, max_inflight_gen_batches=2)
    batch, metrics = buffer.sample(1, "train", 2)
    assert metrics["scout/groups_carried_out"] == 1
    store.kv_clear(list(batch.keys), "train")
    carried = buffer.surplus
    assert next_step(buffer, store, 2) == 1
    batch, metrics = buffer.sample(2, "train", 2)
    assert carried < groups(batch) and len(batch.keys) == 8
    assert metrics["scout/groups_accept_rate"] == 1.0 and metrics["scout/gen_batches"] == 0.5


def test_groups_that_are_too_old_are_dropped(make: Make) -> None:
    buffer, store = make(itertools.chain([RIGHT, WRONG], itertools.repeat(MIXED)), max_inflight_gen_batches=2)
    batch, _ = buffer.sample(1, "train", 2)
    store.kv_clear(list(batch.keys), "train")
    assert next_step(buffer, store, 3) == 2  # two steps later: none of the two may be used
    assert not buffer.surplus
    batch, metrics = buffer.sample(3, "train", 2)
    assert metrics["scout/groups_too_old"] == 2 and metrics["scout/groups_carried_in"] == 0
    assert metrics["scout/age_steps_max"] == 0


def test_without_carrying_surplus_is_thrown_away_as_by_verl(make: Make) -> None:
    buffer, store = make(
        itertools.chain([RIGHT, WRONG], itertools.repeat(MIXED)),
        max_inflight_gen_batches=2,
        carry_max_steps=0,
    )
    batch, metrics = buffer.sample(1, "train", 2)
    assert metrics["scout/groups_carried_out"] == 0 and not buffer.surplus
    assert not [u for u, t in store.tags["train"].items() if t.get("is_prompt")]
    store.kv_clear(list(batch.keys), "train")
    assert next_step(buffer, store, 2) == 2


def test_over_many_steps_no_usable_group_is_lost_or_trained_twice(make: Make) -> None:
    import random

    dice = random.Random(3)
    script = (dice.choice([RIGHT, WRONG, MIXED]) for _ in itertools.count())
    buffer, store = make(script, train_batch_size=4, max_num_gen_batches=50, max_inflight_gen_batches=2)
    trained: list[str] = []
    generated = evicted = 0
    for step in range(1, 40):
        if step > 1:
            next_step(buffer, store, step)
        batch, metrics = buffer.sample(step, "train", 4)
        trained += groups(batch)
        generated += metrics["scout/groups_generated"]
        evicted += metrics["scout/groups_evicted"]
        assert metrics["scout/age_steps_max"] <= 1 and metrics["scout/groups_too_old"] == 0
        store.kv_clear(list(batch.keys), "train")
    assert len(trained) == len(set(trained)) == 4 * 39
    assert generated == evicted + len(trained) + len(buffer.surplus)


def test_groups_of_a_checkpoint_are_adopted(make: Make) -> None:
    buffer, store = make(itertools.repeat(MIXED), train_batch_size=2)
    batch, _ = buffer.sample(1, "train", 2)
    store.kv_clear(list(batch.keys), "train")
    store.step = 1
    store.submit(1)  # stands for what `surplus.load` puts back
    back = {u for u, t in store.tags["train"].items() if t.get("is_prompt")}
    buffer.adopt(back | {"a group that is not there"})
    assert next_step(buffer, store, 2) == 1
    batch, metrics = buffer.sample(2, "train", 2)
    assert back < groups(batch) and metrics["scout/groups_carried_in"] == 1


def test_the_filter_reads_the_outcome_not_the_shaped_reward(make: Make) -> None:
    """All wrong, with different shaped rewards: no group to learn from."""
    buffer, store = make(itertools.chain([WRONG], itertools.repeat(MIXED)))
    for value in ("g0_0_0", "g0_1_0"):
        store.values[value] = {"reward_extra_info": {"acc": 0.0, "total": 0.1}}
    batch, metrics = buffer.sample(1, "train", 2)
    assert "g0" not in groups(batch) and metrics["scout/groups_evicted"] == 1


@pytest.mark.parametrize(("lost", "pauses"), [(1, False), (2, True)])
def test_five_percent_of_the_steps_trajectories_may_be_lost(make: Make, lost: int, pauses: bool) -> None:
    """Eight groups of four: 5 % of 32 is 1.6."""
    from scout_train.errors import UnfilledStepError

    group = [None] * lost + [1.0, 0.0, 1.0, 0.0][lost:]
    script = itertools.chain([group], itertools.repeat(MIXED))
    buffer, _ = make(script, train_batch_size=8, max_infra_error_share=0.05)
    if pauses:
        with pytest.raises(UnfilledStepError, match="2 of 32 trajectories of step 1 were lost, more than 5%"):
            buffer.sample(1, "train", 8)
    else:
        assert len(buffer.sample(1, "train", 8)[0].keys) == 31
