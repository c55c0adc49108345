"""Numbers against hand computation and against resampling done the plain way."""

from __future__ import annotations

import random
from typing import Any

import pytest

from scout_eval.metrics import bootstrap, check_infra, outcome, summarise
from scout_protocol.errors import UserError
from scout_protocol.records import StopReason


def outcomes(make_trace: Any, ems: list[float], **changes: Any) -> list[Any]:
    return [outcome(make_trace(i, em, **changes)) for i, em in enumerate(ems)]


def test_means_by_hand(make_trace: Any) -> None:
    found = outcomes(make_trace, [1.0, 0.0, 1.0, 1.0])
    found.append(outcome(make_trace(4, 0.0, stop=StopReason.MAX_TURNS, turns=("x", "x", "x"), tokens=20)))
    metrics = summarise(found)
    assert metrics.overall.n == 5
    assert metrics.overall.em.mean == pytest.approx(3 / 5)
    assert metrics.overall.score == pytest.approx((1 + 0.1 + 1 + 1 + 0.1) / 5)
    assert metrics.overall.turns == pytest.approx((4 * 2 + 3) / 5)
    assert metrics.overall.searches == pytest.approx((4 * 1 + 2) / 5)
    assert metrics.overall.policy_tokens == pytest.approx((4 * 10 + 20) / 5)
    assert metrics.stop_reasons == {"answer": 4, "max_turns": 1}
    # rows 0, 2, 4 have one hop, rows 1 and 3 two
    assert {k: (g.n, g.em.mean) for k, g in metrics.by["hops"].items()} == {
        "1": (3, pytest.approx(2 / 3)),
        "2": (2, 0.5),
    }
    assert list(metrics.by) == ["data_source", "hops"]


def test_tokens_that_nobody_counted_are_unknown(make_trace: Any) -> None:
    found = outcomes(make_trace, [1.0]) + outcomes(make_trace, [1.0], tokens=None)
    assert summarise(found).overall.policy_tokens is None


def test_what_an_outage_ended_counts_in_nothing_but_its_share(make_trace: Any) -> None:
    found = outcomes(make_trace, [1.0] * 60 + [0.0] * 39)
    found.append(outcome(make_trace(100, stop=StopReason.INFRA_ERROR)))
    metrics = summarise(found)
    assert (metrics.n_trajectories, metrics.n_infra_errors, metrics.overall.n) == (100, 1, 99)
    assert metrics.infra_error_share == 0.01
    assert metrics.overall.em.mean == pytest.approx(60 / 99)
    assert metrics.stop_reasons["infra_error"] == 1


@pytest.mark.parametrize(
    ("n_infra", "n", "passes"),
    [
        (0, 50, True),
        (1, 50, True),
        (2, 100, True),
        (3, 100, False),
        (1, 49, False),
        (1, 1, False),
        (0, 0, False),
    ],
)
def test_more_than_two_percent_outages_is_no_result(n_infra: int, n: int, passes: bool) -> None:
    if passes:
        check_infra(n_infra, n)
    else:
        with pytest.raises(UserError):
            check_infra(n_infra, n)


def test_an_unscored_trace_is_refused(make_trace: Any) -> None:
    with pytest.raises(UserError, match=r"score\.em"):
        outcome(make_trace(score={}))


def test_the_oracles_own_share(make_trace: Any) -> None:
    extras = [{"turns": [{}, {"answerable": known}]} for known in (True, True, False, True)]
    ems = [1.0, 1.0, 0.0, 0.0]
    found = [
        outcome(make_trace(i, em, extra=extra)) for i, (em, extra) in enumerate(zip(ems, extras, strict=True))
    ]
    overall = summarise(found).overall
    assert overall.answerable == 0.75 and overall.em_answerable == pytest.approx(2 / 3)
    assert summarise(outcomes(make_trace, [1.0])).overall.answerable is None


def plain_bootstrap(values: list[float], seed: int) -> tuple[float, float]:
    """Efron's percentile interval, one resample after the other."""
    rng = random.Random(seed)
    means = sorted(sum(rng.choices(values, k=len(values))) / len(values) for _ in range(4000))
    return means[100], means[3899]


@pytest.mark.parametrize(
    "values", [[1.0] * 30 + [0.0] * 70, [0.0, 0.25, 0.5, 0.8, 1.0, 1.0] * 12, [1.0, 0.0]]
)
def test_bootstrap_agrees_with_plain_resampling(values: list[float]) -> None:
    found, (low, high) = bootstrap(values, seed=3), plain_bootstrap(values, seed=4)
    step = 1 / len(values)
    assert found.mean == pytest.approx(sum(values) / len(values))
    assert found.low == pytest.approx(low, abs=1.01 * step) and found.high == pytest.approx(
        high, abs=1.01 * step
    )
    assert found.low < found.mean < found.high


def test_bootstrap_is_seeded_and_flat_data_has_no_width() -> None:
    values = [1.0, 0.0, 0.3] * 20
    assert bootstrap(values, 1) == bootstrap(values, 1)
    assert bootstrap(values, 1) != bootstrap(values, 2)
    assert bootstrap([0.1] * 7, 0).low == bootstrap([0.1] * 7, 0).high == 0.1


def test_the_interval_narrows_with_the_root_of_n() -> None:
    few, many = bootstrap([1.0, 0.0] * 50), bootstrap([1.0, 0.0] * 5000)
    ratio = (few.high - few.low) / (many.high - many.low)
    assert ratio == pytest.approx(10, rel=0.15)
    assert few.high - few.low == pytest.approx(2 * 1.96 * 0.05, rel=0.15)  # normal approximation
