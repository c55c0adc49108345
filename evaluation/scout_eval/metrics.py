"""From outcomes to the numbers of an evaluation. Pure: the same outcomes and seed give the same numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np

from scout_eval.outcomes import FACETS, Outcome, outcome
from scout_eval.statistics import Estimate, bootstrap, pass_at_k
from scout_protocol.errors import UserError

__all__ = ["FACETS", "Estimate", "Group", "Metrics", "bootstrap", "check_infra", "outcome", "summarise"]

MAX_INFRA_SHARE = 0.02


class Group(msgspec.Struct):
    """The numbers of one group of questions. Shares and scores lie in [0, 1].

    With several samples a question, each of its numbers is the mean over its samples; ``n`` counts questions.
    """

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
    em_folded: Estimate | None = None
    cover_em: Estimate | None = None
    pass_at: dict[str, Estimate] = {}  # k -> pass@k, where there is more than one sample
    tool_tokens: float | None = None
    latency_s: float | None = None  # of one trajectory
    no_search: float | None = None  # share of trajectories without a search
    closed_book: float | None = None  # of the right answers, share that no observation held


class ToolUse(msgspec.Struct):
    """What the tool server did for all trajectories. Latencies in seconds; None without a call."""

    n_calls: int
    n_invalid: int  # turns that it could not execute: the policy's errors
    infra_kinds: dict[str, int]  # outages by kind
    call_p50_s: float | None
    call_p95_s: float | None
    trajectory_p50_s: float
    trajectory_p95_s: float


class Metrics(msgspec.Struct):
    """All numbers of one evaluation. What an outage ended counts only in ``n_infra_errors``."""

    overall: Group
    by: dict[str, dict[str, Group]]
    stop_reasons: dict[str, int]
    n_trajectories: int
    n_infra_errors: int
    infra_error_share: float
    tool: ToolUse | None = None
    samples: int = 1


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
    samples = max(Counter(o.question for o in everything).values())
    by: dict[str, dict[str, Group]] = {}
    for facet in FACETS:
        values = sorted({o.facets[facet] for o in scored if facet in o.facets})
        if values:
            by[facet] = {
                value: _group([o for o in scored if o.facets.get(facet) == value], samples, seed)
                for value in values
            }
    return Metrics(
        overall=_group(scored, samples, seed),
        by=by,
        stop_reasons=dict(sorted(Counter(o.stop_reason.value for o in everything).items())),
        n_trajectories=len(everything),
        n_infra_errors=n_infra,
        infra_error_share=n_infra / len(everything),
        tool=_tool_use(everything),
        samples=samples,
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


def by_question(outcomes: Iterable[Outcome]) -> dict[str, list[Outcome]]:
    """Scored outcomes by question, in the order in which the questions first appear."""
    found: dict[str, list[Outcome]] = {}
    for o in outcomes:
        if not o.infra_error:
            found.setdefault(o.question, []).append(o)
    return found


def _group(outcomes: Sequence[Outcome], samples: int, seed: int) -> Group:
    questions = list(by_question(outcomes).values())

    def per_question(number: Callable[[Outcome], float]) -> list[float]:
        return [sum(map(number, found)) / len(found) for found in questions]

    def mean(number: Callable[[Outcome], float]) -> float:
        return float(np.mean(per_question(number)))

    def tokens(number: Callable[[Outcome], int | None]) -> float | None:
        if any(number(o) is None for o in outcomes):
            return None
        return mean(lambda o: float(number(o) or 0))

    known = [o for o in outcomes if o.answerable is not None]
    can = [o for o in known if o.answerable]
    told = [o.closed_book for o in outcomes if o.closed_book is not None]
    return Group(
        n=len(questions),
        em=bootstrap(per_question(lambda o: o.em), seed),
        f1=bootstrap(per_question(lambda o: o.f1), seed),
        format=mean(lambda o: o.format),
        score=mean(lambda o: o.total),
        turns=mean(lambda o: o.turns),
        searches=mean(lambda o: o.searches),
        policy_tokens=tokens(lambda o: o.policy_tokens),
        answerable=len(can) / len(known) if known else None,
        em_answerable=float(np.mean([o.em for o in can])) if can else None,
        em_folded=bootstrap(per_question(lambda o: o.em_folded), seed),
        cover_em=bootstrap(per_question(lambda o: o.cover_em), seed),
        pass_at=_pass_at(questions, samples, seed),
        tool_tokens=tokens(lambda o: o.tool_tokens),
        latency_s=mean(lambda o: o.wall_s),
        no_search=mean(lambda o: float(o.searches == 0)),
        closed_book=sum(told) / len(told) if told else None,
    )


def _pass_at(questions: Sequence[Sequence[Outcome]], samples: int, seed: int) -> dict[str, Estimate]:
    """pass@k for k = 1, 2, 4, … up to the number of samples.

    A question that lost samples to outages is left out of every k above what it still has.
    """
    if samples < 2:
        return {}
    sizes = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k < samples] + [samples]
    found: dict[str, Estimate] = {}
    for k in sizes:
        values = [pass_at_k(len(q), sum(o.em == 1.0 for o in q), k) for q in questions if len(q) >= k]
        if values:
            found[str(k)] = bootstrap(values, seed)
    return found


def _tool_use(outcomes: Sequence[Outcome]) -> ToolUse:
    calls = [s for o in outcomes for s in o.call_s]
    walls = [o.wall_s for o in outcomes]

    def quantile(values: Sequence[float], q: float) -> float:
        return float(np.quantile(values, q))

    return ToolUse(
        n_calls=len(calls),
        n_invalid=sum(o.n_invalid for o in outcomes),
        infra_kinds=dict(sorted(Counter(kind for o in outcomes for kind in o.error_kinds).items())),
        call_p50_s=quantile(calls, 0.5) if calls else None,
        call_p95_s=quantile(calls, 0.95) if calls else None,
        trajectory_p50_s=quantile(walls, 0.5),
        trajectory_p95_s=quantile(walls, 0.95),
    )
