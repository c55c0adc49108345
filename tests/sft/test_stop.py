"""When a warm-up stops and which checkpoint it keeps: rules against hand-made histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_protocol.errors import UserError
from scout_sft.history import History
from scout_sft.stop import choose, loss_stalled, reason_to_stop, rules
from scout_sft.verl_config import TrainSettings


def probe(pass_at_1: float, adherence: float = 1.0) -> dict[str, Any]:
    return {"format_adherence": adherence, "pass_at_1": pass_at_1}


@pytest.mark.parametrize(
    ("settings", "on"),
    [
        ({"steps": 5}, ()),
        ({}, ("loss",)),
        ({"probe_rows": "r"}, ("loss", "format")),
        ({"steps": 5, "probe_rows": "r"}, ()),
        ({"steps": 5, "stop": "loss"}, ("loss",)),
        ({"stop": "format", "probe_rows": "r"}, ("format",)),
        ({"stop": "both", "probe_rows": "r"}, ("loss", "format")),
        ({"stop": "never"}, ()),
    ],
)
def test_rules(settings: dict[str, Any], on: tuple[str, ...]) -> None:
    assert rules(TrainSettings(**settings)) == on


@pytest.mark.parametrize(
    ("losses", "stalled"),
    [
        ([], False),
        ([1.0, 0.9, 0.8, 0.7], False),
        ([1.0, 1.0, 1.0, 1.0], True),  # three after the best
        ([1.0, 1.0, 1.0], False),
        ([1.0, 0.5, 0.6, 0.7, 0.4], False),  # the last is a new best
        ([1.0, 0.5, 0.6, 0.55, 0.51], True),
        ([1.0, 0.9, 0.899, 0.898, 0.897], True),  # falls, but by less than half a per cent
        ([1.0, float("nan"), float("nan"), float("nan")], True),
    ],
)
def test_a_loss_that_no_longer_falls(losses: list[float], stalled: bool) -> None:
    assert loss_stalled(dict(enumerate(losses, 1)), patience=3, min_delta=0.005) is stalled


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=12), st.integers(1, 4))
def test_it_is_the_age_of_the_best_that_counts(losses: list[float], patience: int) -> None:
    best = min(range(len(losses)), key=lambda i: (losses[i], i))
    val = {50 * (i + 1): loss for i, loss in enumerate(losses)}
    assert loss_stalled(val, patience, 0.0) is (len(losses) - 1 - best >= patience)


def test_format_stops_only_where_enough_is_earned_too() -> None:
    settings = TrainSettings(probe_rows="r", stop="format", stop_em=0.2)
    history = History()
    assert reason_to_stop(settings, history, {}) is None
    assert reason_to_stop(settings, history, {100: probe(0.1, 1.0)}) is None
    assert reason_to_stop(settings, history, {100: probe(0.5, 0.94)}) is None
    assert reason_to_stop(settings, history, {100: probe(0.5, 0.95)}) == "format"
    assert reason_to_stop(settings, history, {100: probe(0.5), 200: probe(0.1)}) is None  # the newest counts
    stalled = History(val={1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0})
    assert reason_to_stop(settings, stalled, {}) is None
    assert reason_to_stop(TrainSettings(), stalled, {}) == "loss"
    assert reason_to_stop(TrainSettings(steps=9), stalled, {}) is None


def test_which_checkpoint_is_kept_and_why() -> None:
    history = History(val={100: 1.0, 200: 0.5, 300: 0.7})
    steps = [100, 200, 300]
    assert choose(TrainSettings(steps=300), steps, history, {}) == (300, "last")
    assert choose(TrainSettings(steps=300, keep="best"), steps, history, {}) == (200, "validation loss")
    assert choose(TrainSettings(), steps, history, {}) == (200, "validation loss")
    assert choose(TrainSettings(keep="last"), steps, history, {}) == (300, "last")
    assert choose(TrainSettings(), [100, 300], history, {})[0] == 300
    probes = {100: probe(0.3), 200: probe(0.4, 0.9), 300: probe(0.4, 1.0)}
    told = "pass@1 of rollouts, then their format"
    assert choose(TrainSettings(probe_rows="r"), steps, history, probes) == (300, told)
    assert choose(TrainSettings(probe_rows="r"), [100, 200], history, probes) == (200, told)
    assert choose(TrainSettings(probe_rows="r"), steps, history, {s: probe(0.3) for s in steps}) == (
        100,
        told,
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"stop": "sometimes"},
        {"stop": "format"},
        {"stop": "loss", "val_share": 0.0},
        {"val_share": 0.0},
        {"stop_format": 1.5},
        {"stop_patience": 0},
        {"epochs": 0},
        {"lora_rank": -1},
        {"probe_samples": 0},
    ],
    ids=str,
)
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        TrainSettings(**wrong)
