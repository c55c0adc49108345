"""Several algorithms from the same warm-up: what each learned, how fast, and at what price.

Reads what `scout compare-algos` leaves, ``FOLDER/seedN/{ALGO/metrics.jsonl, eval/ALGO/summary.json}``; a run
counts once its evaluation has finished.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec

from scout_eval.report_data import Curve, read_curve
from scout_eval.summary import SUMMARY, read_summary
from scout_protocol.errors import UserError

FIRST = 5
START = "sft"  # the evaluation of what all of them start from


class Result(msgspec.Struct, frozen=True):
    """One algorithm on one seed: the held-out evaluation, then the training run.

    Attributes:
        accept_rate: usable groups among those generated, over the run; None where nothing was left out.
        zero_gradient_share: mean share of trained groups whose advantages are all zero; ``_first``: in the
            first `FIRST` steps.
        generated_tokens: policy tokens sampled, trained or not.
        step_s: median seconds of a step.
        overhead_share: what a step takes beyond generation and update, relative to these; median.
    """

    seed: int
    algo: str
    n: int
    em: float
    em_low: float
    em_high: float
    hops: dict[str, float]
    searches: float
    steps: int = 0
    accept_rate: float | None = None
    zero_gradient_share: float | None = None
    zero_gradient_share_first: float | None = None
    generated_tokens: float | None = None
    step_s: float | None = None
    overhead_share: float | None = None


@dataclass(frozen=True, slots=True)
class AlgoRun:
    """A result and the curve behind it; the warm-up has no curve."""

    result: Result
    curve: Curve | None


def tokens_per_step(curve: Curve) -> list[float]:
    """Policy tokens that each step sampled."""
    return [
        s.get("scout/policy_tokens", 0.0)
        * (s.get("scout/trajectories", 0.0) - s.get("scout/infra_errors", 0.0))
        for s in curve.steps
    ]


def tokens_so_far(curve: Curve) -> list[float]:
    """Policy tokens sampled up to and including each step."""
    return list(accumulate(tokens_per_step(curve)))


def _accept_rate(curve: Curve) -> float | None:
    """Usable groups over judged ones, weighted by how many each step judged."""
    judged = [s["scout/groups_generated"] for s in curve.steps if "scout/groups_generated" in s]
    usable = [
        s["scout/groups_accept_rate"] * s["scout/groups_generated"]
        for s in curve.steps
        if "scout/groups_generated" in s
    ]
    rate = sum(usable) / sum(judged) if sum(judged) else 1.0
    return rate if rate < 1.0 else None


def _overhead(step: dict[str, float]) -> float | None:
    busy_s = step.get("scout/generate_s", 0.0) + step.get("timing_s/update_actor", 0.0)
    return step["timing_s/step"] / busy_s - 1.0 if busy_s and "timing_s/step" in step else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _read(folder: Path, seed: int, algo: str) -> AlgoRun:
    overall = (metrics := read_summary(folder / "eval" / algo).metrics).overall
    facts: dict[str, Any] = {
        "seed": seed,
        "algo": algo,
        "n": overall.n,
        "em": overall.em.mean,
        "em_low": overall.em.low,
        "em_high": overall.em.high,
        "hops": {hops: group.em.mean for hops, group in metrics.by.get("hops", {}).items()},
        "searches": overall.searches,
    }
    if algo == START:
        return AlgoRun(Result(**facts), None)
    warnings: list[str] = []
    curve = read_curve(folder / algo / "metrics.jsonl", algo, warnings)
    if curve is None or not curve.steps or warnings:
        raise UserError(
            "run", folder / algo, f"{'; '.join(warnings) or 'has no metrics.jsonl'}: train it again"
        )
    uniform = [s["scout/zero_variance_group_share"] for s in curve.steps]
    facts |= {
        "steps": curve.at[-1],
        "accept_rate": _accept_rate(curve),
        "zero_gradient_share": sum(uniform) / len(uniform),
        "zero_gradient_share_first": sum(uniform[:FIRST]) / len(uniform[:FIRST]),
        "generated_tokens": sum(tokens_per_step(curve)),
        "step_s": _median([s.get("timing_s/step") for s in curve.steps]),
        "overhead_share": _median([_overhead(s) for s in curve.steps]),
    }
    return AlgoRun(Result(**facts), curve)


def load_algos(folder: Path) -> list[AlgoRun]:
    """Every evaluated run below ``folder/seed*``, by seed, the warm-up first, then by name.

    Raises:
        UserError: there is none, or a run's metrics are missing or damaged.
    """
    runs = []
    for place in sorted(folder.glob("seed*"), key=lambda p: (len(p.name), p.name)):
        number = place.name.removeprefix("seed")
        if not number.isdecimal():
            continue
        found = sorted(p.parent.name for p in place.glob(f"eval/*/{SUMMARY}") if "." not in p.parent.name)
        for algo in sorted(found, key=lambda name: (name != START, name)):
            if algo == START or (place / algo / "metrics.jsonl").is_file():
                runs.append(_read(place, int(number), algo))
    if not any(run.curve for run in runs):
        raise UserError(
            "folder", folder, "holds no trained and evaluated run: scout compare-algos makes them"
        )
    return runs
