"""From traces to numbers. Pure: the same outcomes and the same seed give the same summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from scout_protocol.errors import UserError
from scout_protocol.records import StopReason, Trace

FACETS = ("data_source", "hops", "type", "level")
MAX_INFRA_SHARE = 0.02
RESAMPLES = 2000
CONFIDENCE = 0.95


class Outcome(msgspec.Struct, frozen=True):
    """What the numbers need from one trajectory; a trace without its text."""

    facets: dict[str, str]
    stop_reason: StopReason
    em: float
    f1: float
    format: float
    total: float
    turns: int
    searches: int
    policy_tokens: int | None
    answerable: bool | None  # only a scripted oracle knows

    @property
    def infra_error(self) -> bool:
        """The tool or the endpoint was not there: this says nothing about the policy."""
        return self.stop_reason is StopReason.INFRA_ERROR


class Estimate(msgspec.Struct):
    """A mean over questions with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float


class Group(msgspec.Struct):
    """The numbers of one group of questions. Shares and scores lie in [0, 1]."""

    n: int
    em: Estimate
    f1: Estimate
    format: float  # share of trajectories that closed an answer
    score: float  # mean reward
    turns: float
    searches: float
    policy_tokens: float | None  # None where the policy does not count tokens
    answerable: float | None = None  # share that the oracle found evidence for
    em_answerable: float | None = None  # EM among those


class Metrics(msgspec.Struct):
    """All numbers of one evaluation. What an outage ended counts only in ``n_infra_errors``."""

    overall: Group
    by: dict[str, dict[str, Group]]
    stop_reasons: dict[str, int]
    n_trajectories: int
    n_infra_errors: int
    infra_error_share: float


def outcome(trace: Trace) -> Outcome:
    """The outcome of a scored trace. ``trace.extra["row"]`` holds the facets of its question.

    Raises:
        UserError: the trace was not scored.
    """
    infra = trace.stop_reason is StopReason.INFRA_ERROR
    missing = [key for key in ("em", "f1", "format", "total") if key not in trace.score]
    if missing and not infra:
        raise UserError(f"trace {trace.trace_id}: score.{missing[0]}", "missing", "score the trace first")
    parts: dict[str, Any] = trace.score
    facets = {"data_source": trace.data_source}
    facets |= {key: str(value) for key, value in trace.extra.get("row", {}).items() if key in FACETS}
    known = [turn["answerable"] for turn in trace.extra.get("turns", []) if "answerable" in turn]
    return Outcome(
        facets=facets,
        stop_reason=trace.stop_reason,
        em=float(parts.get("em", 0.0)),
        f1=float(parts.get("f1", 0.0)),
        format=float(parts.get("format", 0.0)),
        total=float(parts.get("total", 0.0)),
        turns=trace.n_turns,
        searches=trace.n_searches,
        policy_tokens=trace.n_policy_tokens,
        answerable=bool(known[-1]) if known else None,
    )


def summarise(
    outcomes: Iterable[Outcome], seed: int = 0, max_infra_share: float = MAX_INFRA_SHARE
) -> Metrics:
    """The numbers of one evaluation.

    Args:
        outcomes: one per trajectory, outages included.
        seed: of the bootstrap.
        max_infra_share: above this share of outages there is no summary.

    Raises:
        UserError: too many outages, or no trajectory at all.
    """
    everything = list(outcomes)
    scored = [o for o in everything if not o.infra_error]
    n_infra = len(everything) - len(scored)
    check_infra(n_infra, len(everything), max_infra_share)
    by: dict[str, dict[str, Group]] = {}
    for facet in FACETS:
        values = sorted({o.facets[facet] for o in scored if facet in o.facets})
        if values:
            by[facet] = {
                value: _group([o for o in scored if o.facets.get(facet) == value], seed) for value in values
            }
    return Metrics(
        overall=_group(scored, seed),
        by=by,
        stop_reasons=dict(sorted(Counter(o.stop_reason.value for o in everything).items())),
        n_trajectories=len(everything),
        n_infra_errors=n_infra,
        infra_error_share=n_infra / len(everything),
    )


def check_infra(n_infra: int, n_total: int, max_share: float = MAX_INFRA_SHARE) -> None:
    """Refuse a result with too many outages.

    Raises:
        UserError: the share of outages is above ``max_share``, or there is nothing to judge.
    """
    if n_total == 0:
        raise UserError("trajectories", 0, "nothing was evaluated")
    if n_infra == n_total or n_infra / n_total > max_share:
        raise UserError(
            "infra errors",
            f"{n_infra} of {n_total} trajectories ({n_infra / n_total:.1%}, allowed {max_share:.0%})",
            "no result; check the tool server, then run the same command again: it repeats only these",
        )


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
    rng = np.random.default_rng(seed)
    # A resample is a multinomial draw over the distinct values: for EM that is two bins, however large N is.
    distinct_D, counts_D = np.unique(data_N, return_counts=True)
    draws_RD = rng.multinomial(len(data_N), counts_D / len(data_N), size=resamples)
    means_R = draws_RD @ distinct_D / len(data_N)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(means_R, [tail, 1 - tail])
    return Estimate(float(data_N.mean()), float(low), float(high))


def _group(outcomes: Sequence[Outcome], seed: int) -> Group:
    def mean(values: Iterable[float]) -> float:
        return float(np.mean(list(values)))

    tokens = [o.policy_tokens for o in outcomes]
    known = [o for o in outcomes if o.answerable is not None]
    can = [o for o in known if o.answerable]
    return Group(
        n=len(outcomes),
        em=bootstrap([o.em for o in outcomes], seed),
        f1=bootstrap([o.f1 for o in outcomes], seed),
        format=mean(o.format for o in outcomes),
        score=mean(o.total for o in outcomes),
        turns=mean(o.turns for o in outcomes),
        searches=mean(o.searches for o in outcomes),
        policy_tokens=mean(t for t in tokens if t is not None) if None not in tokens else None,
        answerable=len(can) / len(known) if known else None,
        em_answerable=mean(o.em for o in can) if can else None,
    )
