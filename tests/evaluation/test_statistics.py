"""Tests and estimators against scipy, brute force and plain resampling."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_eval.statistics import mcnemar, paired_bootstrap, pass_at_k

stats = pytest.importorskip("scipy.stats")


@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_scipys_exact_binomial(won: int, lost: int) -> None:
    expected = stats.binomtest(won, won + lost, 0.5).pvalue if won + lost else 1.0
    assert mcnemar(won, lost) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_by_hand() -> None:
    assert mcnemar(5, 0) == 2 / 32
    assert mcnemar(8, 2) == 2 * (1 + 10 + 45) / 1024
    assert mcnemar(3, 3) == 1.0
    assert 0 < mcnemar(5000, 3000) < 1e-100  # large counts neither overflow nor vanish


def plain_paired(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Draw questions one by one, and both results with each."""
    rng, n = random.Random(5), len(a)
    means = []
    for _ in range(4000):
        drawn = [rng.randrange(n) for _ in range(n)]
        means.append(sum(b[i] - a[i] for i in drawn) / n)
    means.sort()
    below, above = sum(m <= 0 for m in means), sum(m >= 0 for m in means)
    return means[100], means[3899], min(1.0, 2 * min(below, above) / 4000)


@pytest.mark.parametrize(("only_a", "only_b"), [(10, 22), (15, 15), (2, 40)])
def test_paired_bootstrap_is_plain_resampling_of_questions(only_a: int, only_b: int) -> None:
    a = [1.0] * 30 + [1.0] * only_a + [0.0] * only_b + [0.0] * 40
    b = [1.0] * 30 + [0.0] * only_a + [1.0] * only_b + [0.0] * 40
    found, (low, high, p) = paired_bootstrap(a, b, seed=1), plain_paired(a, b)
    assert found.mean == pytest.approx((only_b - only_a) / len(a))
    assert found.low == pytest.approx(low, abs=0.02) and found.high == pytest.approx(high, abs=0.02)
    assert found.p == pytest.approx(p, abs=0.03)


def test_paired_bootstrap_agrees_with_scipy() -> None:
    rng = random.Random(0)
    a = [rng.random() for _ in range(80)]
    b = [x + rng.gauss(0.03, 0.2) for x in a]
    found = paired_bootstrap(a, b)
    expected = stats.bootstrap(
        ([y - x for x, y in zip(a, b, strict=True)],),
        lambda d, axis: d.mean(axis=axis),
        method="percentile",
        n_resamples=10_000,
        random_state=3,
    ).confidence_interval
    assert found.low == pytest.approx(expected.low, abs=0.005)
    assert found.high == pytest.approx(expected.high, abs=0.005)


def test_pairing_is_what_makes_it_sharp() -> None:
    """The same margins, with the wins on other questions: a wider interval."""
    together = paired_bootstrap([1.0] * 50 + [0.0] * 50, [1.0] * 55 + [0.0] * 45)
    apart = paired_bootstrap([1.0] * 50 + [0.0] * 50, [0.0] * 45 + [1.0] * 55)
    assert together.mean == pytest.approx(apart.mean) == pytest.approx(0.05)
    assert together.high - together.low < 0.5 * (apart.high - apart.low)
    assert together.p < 0.05 < apart.p


def test_swapping_the_sides_mirrors_the_result() -> None:
    a, b = [1.0, 0.0, 1.0, 0.0, 0.0] * 20, [1.0, 1.0, 0.0, 1.0, 0.0] * 20
    one, two = paired_bootstrap(a, b, seed=2), paired_bootstrap(b, a, seed=2)
    assert one.mean == -two.mean
    assert one.low == pytest.approx(-two.high, abs=0.02) and one.p == pytest.approx(two.p, abs=0.02)
    assert paired_bootstrap(a, a) == paired_bootstrap(b, b)
    assert paired_bootstrap(a, a).p == 1.0


@given(st.integers(1, 9), st.data())
def test_pass_at_k_is_the_share_of_all_choices(n: int, data: st.DataObject) -> None:
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    right = [True] * c + [False] * (n - c)
    choices = list(itertools.combinations(right, k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, choices)) / len(choices))


def test_pass_at_k_is_unbiased() -> None:
    """Its mean over all outcomes of n samples is the true probability, for every k up to n."""
    p, n = 0.3, 6
    for k in range(1, n + 1):
        mean = sum(math.comb(n, c) * p**c * (1 - p) ** (n - c) * pass_at_k(n, c, k) for c in range(n + 1))
        assert mean == pytest.approx(1 - (1 - p) ** k)


@pytest.mark.parametrize("k", [0, 4])
def test_pass_at_an_impossible_k(k: int) -> None:
    with pytest.raises(ValueError, match="between 1"):
        pass_at_k(3, 1, k)
