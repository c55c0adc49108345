"""Intervals, paired tests and pass@k. Pure: the same numbers and the same seed give the same result."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

RESAMPLES = 2000
PAIRED_RESAMPLES = 10_000
CONFIDENCE = 0.95
_CHUNK = 1 << 22  # numbers drawn at once


class Estimate(msgspec.Struct):
    """A mean over questions with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class Difference(msgspec.Struct):
    """The mean of B minus A over the same questions, its 95 % interval and a two-sided p value."""

    mean: float
    low: float
    high: float
    p: float


def bootstrap(values: Sequence[float], seed: int = 0, resamples: int = RESAMPLES) -> Estimate:
    """Mean with its percentile bootstrap interval (Efron 1979) over questions.

    Args:
        values: one number per question; at least one.
        seed: of the resampling.
        resamples: number of bootstrap samples.
    """
    data_N = np.asarray(values, dtype=np.float64)
    if (data_N == data_N[0]).all():  # also one value alone: resampling cannot move it
        return Estimate(float(data_N[0]), float(data_N[0]), float(data_N[0]))
    low, high = _interval(_means(data_N, seed, resamples))
    return Estimate(float(data_N.mean()), low, high)


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], seed: int = 0, resamples: int = PAIRED_RESAMPLES
) -> Difference:
    """B minus A with a percentile interval: questions are drawn, and with each both of its results.

    The p value is twice the smaller share of resamples on either side of 0 (a resample at 0 counts on both),
    with one added to both counts, so that it is never 0.

    Args:
        a, b: results on the same questions in the same order; at least one.
        seed: of the resampling.
        resamples: number of bootstrap samples.
    """
    data_N = np.asarray(b, dtype=np.float64) - np.asarray(a, dtype=np.float64)
    if (data_N == data_N[0]).all():
        value = float(data_N[0])
        return Difference(value, value, value, 1.0 if value == 0 else 1 / (resamples + 1))
    means_R = _means(data_N, seed, resamples)
    below, above = int((means_R <= 0).sum()), int((means_R >= 0).sum())
    low, high = _interval(means_R)
    return Difference(
        float(data_N.mean()), low, high, min(1.0, 2 * (min(below, above) + 1) / (resamples + 1))
    )


def mcnemar(won: int, lost: int) -> float:
    """Exact two-sided p value of McNemar's test (1947): a binomial with 1/2 over the discordant pairs.

    Args:
        won: pairs that only B got right.
        lost: pairs that only A got right.
    """
    n, fewer = won + lost, min(won, lost)
    if not n:
        return 1.0
    # Whole numbers until the division: no tail is lost to rounding.
    tail, term = 0, 1
    for i in range(fewer + 1):
        tail += term
        term = term * (n - i) // (i + 1)
    return min(1.0, tail / (1 << (n - 1)))


def pass_at_k(n: int, n_right: int, k: int) -> float:
    """The probability that at least one of ``k`` samples is right, estimated from ``n`` without bias.

    Chen et al. 2021 (arXiv:2107.03374), equation 1: ``1 - C(n - c, k) / C(n, k)``.
    """
    if not 1 <= k <= n:
        raise ValueError(f"k must be between 1 and n = {n}, got {k}")
    return 1.0 - math.comb(n - n_right, k) / math.comb(n, k)


def _means(data_N: np.ndarray, seed: int, resamples: int) -> np.ndarray:
    """Means of bootstrap samples.

    A resample is a multinomial draw over the distinct values: for EM that is two bins, however large N is.
    """
    rng = np.random.default_rng(seed)
    distinct_D, counts_D = np.unique(data_N, return_counts=True)
    step = max(1, _CHUNK // len(distinct_D))
    parts = [
        rng.multinomial(len(data_N), counts_D / len(data_N), size=min(step, resamples - at)) @ distinct_D
        for at in range(0, resamples, step)
    ]
    return np.concatenate(parts) / len(data_N)


def _interval(means_R: np.ndarray) -> tuple[float, float]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means_R, [tail, 1 - tail])
    return float(low), float(high)
