"""Two evaluations on the same questions: what changed, and whether chance explains it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from scout_eval.card import fingerprint
from scout_eval.metrics import check_infra
from scout_eval.outcomes import FACETS, Outcome, outcome
from scout_eval.statistics import Difference, mcnemar, paired_bootstrap
from scout_eval.summary import TRACES, Summary, read_summary
from scout_eval.trace_log import read_traces
from scout_protocol.errors import UserError

Number = Callable[[Outcome], float | None]
NUMBERS: dict[str, Number] = {
    "EM": lambda o: o.em,
    "folded EM": lambda o: o.em_folded,
    "F1": lambda o: o.f1,
    "cover-EM": lambda o: o.cover_em,
    "reward": lambda o: o.total,
    "answered": lambda o: o.format,
    "turns": lambda o: float(o.turns),
    "searches": lambda o: float(o.searches),
    "tokens": lambda o: o.policy_tokens,
}


class Change(msgspec.Struct):
    """One number in both evaluations, over the questions that both finished."""

    n: int
    a: float
    b: float
    difference: Difference


class Flip(msgspec.Struct):
    """A question that one got right and the other did not."""

    key: str
    question: str
    golden_answers: list[str]
    answer_a: str
    answer_b: str
    facets: dict[str, str]


class McNemar(msgspec.Struct):
    """The table of right and wrong, and the exact test on what changed."""

    both: int
    only_a: int
    only_b: int
    neither: int
    p: float


class Comparison(msgspec.Struct):
    """B against A."""

    a: str
    b: str
    model_a: str
    model_b: str
    n: int
    changes: dict[str, Change]
    by: dict[str, dict[str, Change]]  # EM alone
    mcnemar: McNemar | None  # None with several samples a question: right and wrong are then shares
    won: list[Flip]
    lost: list[Flip]
    settings: dict[str, tuple[str, str]]  # what differs in the fingerprints
    warnings: list[str]


class _Side(msgspec.Struct):
    summary: Summary
    outcomes: dict[str, list[Outcome]]
    texts: dict[str, tuple[str, list[str], str]]  # question, golden answers, the (first) answer


def compare(a: Path, b: Path, seed: int = 0) -> Comparison:
    """Compare two finished evaluations question by question.

    Raises:
        UserError: one is not finished or had too many outages, or they share no question.
    """
    left, right = _read(a), _read(b)
    keys = [key for key in left.outcomes if key in right.outcomes]
    if not keys:
        raise UserError("compare", f"{a} and {b}", "have no question in common: evaluate the same rows")
    warnings = _warnings(left, right, len(keys))
    changes: dict[str, Change] = {}
    for name, number in NUMBERS.items():
        change = _change(left, right, keys, number, seed)
        if change is not None:
            changes[name] = change
    by: dict[str, dict[str, Change]] = {}
    for facet in FACETS:
        values = sorted({v for key in keys if (v := left.outcomes[key][0].facets.get(facet)) is not None})
        if len(values) < 2:
            continue
        by[facet] = {}
        for value in values:
            some = [k for k in keys if left.outcomes[k][0].facets.get(facet) == value]
            by[facet][value] = _change_of(_ems(left, some), _ems(right, some), seed)
    single = left.summary.identity.samples == right.summary.identity.samples == 1
    won = [_flip(left, right, k) for k in keys if _em(left, k) < _em(right, k)]
    lost = [_flip(left, right, k) for k in keys if _em(left, k) > _em(right, k)]
    both = sum(_em(left, k) == _em(right, k) == 1 for k in keys)
    table = McNemar(
        both, len(lost), len(won), len(keys) - both - len(won) - len(lost), mcnemar(len(won), len(lost))
    )
    one, two = fingerprint(left.summary), fingerprint(right.summary)
    return Comparison(
        a=str(a),
        b=str(b),
        model_a=left.summary.model,
        model_b=right.summary.model,
        n=len(keys),
        changes=changes,
        by=by,
        mcnemar=table if single else None,
        won=won,
        lost=lost,
        settings={name: (one[name], two[name]) for name in one if one[name] != two[name]},
        warnings=warnings,
    )


def _read(folder: Path) -> _Side:
    summary = read_summary(folder)
    check_infra(summary.metrics.n_infra_errors, summary.metrics.n_trajectories)
    side = _Side(summary, {}, {})
    for trace in read_traces(folder / TRACES):
        o = outcome(trace)
        if o.infra_error:
            continue
        side.outcomes.setdefault(o.question, []).append(o)
        answer: Any = trace.score.get("answer") or f"(none: {trace.stop_reason.value})"
        side.texts.setdefault(o.question, (trace.question, trace.golden_answers, str(answer)))
    return side


def _warnings(left: _Side, right: _Side, n: int) -> list[str]:
    warnings = []
    if left.summary.identity.rows_sha256 != right.summary.identity.rows_sha256:
        warnings.append(
            "The two were evaluated on different files of rows; questions are matched by their ids."
        )
    n_a, n_b = len(left.outcomes), len(right.outcomes)
    if n < max(n_a, n_b):
        warnings.append(f"Compared on the {n} questions that both finished, of {n_a} and {n_b}.")
    if left.summary.identity.samples != 1 or right.summary.identity.samples != 1:
        warnings.append(
            "Several samples a question: numbers are means over samples, and McNemar's test is left out."
        )
    return warnings


def _ems(side: _Side, keys: Sequence[str]) -> list[float]:
    return [sum(o.em for o in side.outcomes[k]) / len(side.outcomes[k]) for k in keys]


def _em(side: _Side, key: str) -> float:
    return _ems(side, [key])[0]


def _change(left: _Side, right: _Side, keys: Sequence[str], number: Number, seed: int) -> Change | None:
    """The change of one number; None where one side does not know it for every trajectory."""
    means: list[list[float]] = []
    for side in (left, right):
        found = [[number(o) for o in side.outcomes[k]] for k in keys]
        if any(v is None for values in found for v in values):
            return None
        means.append([sum(v or 0.0 for v in values) / len(values) for values in found])
    return _change_of(means[0], means[1], seed)


def _change_of(a: Sequence[float], b: Sequence[float], seed: int) -> Change:
    return Change(len(a), sum(a) / len(a), sum(b) / len(b), paired_bootstrap(a, b, seed))


def _flip(left: _Side, right: _Side, key: str) -> Flip:
    question, golds, answer_a = left.texts[key]
    return Flip(key, question, list(golds), answer_a, right.texts[key][2], left.outcomes[key][0].facets)
