"""A comparison of algorithms as a sheet."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from scout_eval.algos import START, AlgoRun, Result, tokens_so_far
from scout_eval.charts import Series, line_chart
from scout_eval.sheet import NOTHING, Cell, Figure, Panels, Sheet, Table, number

NAMES = {
    START: "start",
    "grpo": "GRPO",
    "dr_grpo": "Dr.GRPO",
    "dapo": "DAPO",
    "dapo_dr_grpo": "DAPO+Dr",
    "gspo": "GSPO",
    "ppo": "PPO",
}
_COLUMNS = ("EM", "1h", "2h", "3h", "srch", "acc.", "zero", "first", "tokens", "s/step", "over")
_ABOUT = (
    "start: the warm-up. DAPO+Dr: DAPO's data, Dr.GRPO's scale. EM, by hops, searches: held-out questions, "
    "greedy. acc.: groups with both right and wrong members among those generated, where the algorithm "
    "filters. zero: trained groups whose members all have the same reward and hence no gradient; first: in "
    "the first five steps. tokens: sampled by the policy. over: what a step takes beyond the model's "
    "generation and its update, relative to these (median)."
)
_PANELS = (
    ("Exact match of rollouts", "scout/em"),
    ("Searches per trajectory", "scout/searches"),
    ("Entropy of the policy", "actor/entropy"),
    ("Gradient norm", "actor/grad_norm"),
    ("Groups without a gradient (share)", "scout/zero_variance_group_share"),
    ("Response length (tokens)", "response_length/mean"),
)


def name_of(algo: str) -> str:
    """What readers call it."""
    return NAMES.get(algo, algo)


def algos_sheet(folder: str, runs: Sequence[AlgoRun]) -> Sheet:
    """The table over seeds, one row per seed, then the curves (means over the seeds)."""
    by_algo = _grouped(runs)
    seeds = sorted({run.result.seed for run in runs})
    start = by_algo.get(START, [])
    sheet = Sheet(
        "Algorithms compared",
        f"{folder}: seeds {', '.join(map(str, seeds))}; EM "
        + "; ".join(f"{name_of(a)} {_mean_of(every, lambda r: r.em):.3f}" for a, every in by_algo.items()),
    )
    counts = {algo: len(every) for algo, every in by_algo.items()}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name_of(a)} {n}" for a, n in counts.items())
        sheet.warnings.append(f"Not every algorithm has every seed ({told}): the means do not compare.")
    rows = [[Cell(name_of(a)), *_means([r.result for r in every])] for a, every in by_algo.items()]
    note = f"Means over the seeds, with their range beneath EM. {_ABOUT}"
    sheet.blocks.append(Table("Means", ("", *_COLUMNS), rows, note, rule_after=1 if start else 0))
    rows = [[Cell(f"{r.result.seed} {name_of(r.result.algo)}"), *_cells(r.result)] for r in runs]
    sheet.blocks.append(Table("Every run", ("seed", *_COLUMNS), rows, "95 % intervals over questions."))
    sheet.blocks.append(_panels(runs, by_algo))
    return sheet


def _panels(runs: Sequence[AlgoRun], by_algo: dict[str, list[AlgoRun]]) -> Panels:
    figures = []
    for title, key in _PANELS:
        svg = line_chart(f"{title} over steps", _lines(by_algo, key), (), _last_step(runs))
        if svg:
            figures.append(Figure(title, svg, key))
    svg = line_chart(
        "Exact match over thousands of sampled tokens", _by_tokens(by_algo), (), _last_tokens(runs)
    )
    figures.append(Figure("Exact match of rollouts by tokens", svg, "thousands of policy tokens sampled"))
    legend = [(_css(by_algo, algo), name_of(algo)) for algo in by_algo if algo != START]
    note = "Training rollouts, sampled; means over the seeds. Thin: each step; bold: mean of the last 5."
    return Panels("How training went", figures, legend, note)


def _grouped(runs: Sequence[AlgoRun]) -> dict[str, list[AlgoRun]]:
    order = {name: place for place, name in enumerate(NAMES)}
    names = sorted({run.result.algo for run in runs}, key=lambda a: (order.get(a, len(order)), a))
    return {name: [run for run in runs if run.result.algo == name] for name in names}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _mean_of(runs: Sequence[AlgoRun], read: Callable[[Result], float | None]) -> float | None:
    return _mean([read(run.result) for run in runs])


def _means(results: Sequence[Result]) -> list[Cell]:
    ems = [r.em for r in results]
    return [
        Cell(_short(statistics.fmean(ems)), f"{_short(min(ems))}–{_short(max(ems))}"),
        *(_hop(_mean([r.hops.get(h) for r in results])) for h in "123"),
        number(_mean([r.searches for r in results]), 2),
        _percent(_mean([r.accept_rate for r in results])),
        _percent(_mean([r.zero_gradient_share for r in results])),
        _percent(_mean([r.zero_gradient_share_first for r in results])),
        _thousands(_mean([r.generated_tokens for r in results])),
        number(_mean([r.step_s for r in results]), 1),
        _percent(_mean([r.overhead_share for r in results])),
    ]


def _cells(r: Result) -> list[Cell]:
    return [
        Cell(_short(r.em), f"{_short(r.em_low)}–{_short(r.em_high)}"),
        *(_hop(r.hops.get(h)) for h in "123"),
        number(r.searches, 2),
        _percent(r.accept_rate),
        _percent(r.zero_gradient_share),
        _percent(r.zero_gradient_share_first),
        _thousands(r.generated_tokens),
        number(r.step_s, 1),
        _percent(r.overhead_share),
    ]


def _short(value: float, digits: int = 3) -> str:
    """Without the zero that every share below 1 begins with: the table has to fit a terminal."""
    return f"{value:.{digits}f}".removeprefix("0") if value < 1 else f"{value:.{digits - 1}f}"


def _hop(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(_short(value, 2))


def _percent(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value:.0%}")


def _thousands(value: float | None) -> Cell:
    return NOTHING if value is None else Cell(f"{value / 1000:,.0f}k")


def _lines(by_algo: dict[str, list[AlgoRun]], key: str) -> list[Series]:
    """One line per algorithm: at every step the mean over the seeds that have it."""
    series = []
    for algo, runs in by_algo.items():
        at: dict[int, list[float]] = {}
        for run in runs:
            for step, value in run.curve.series(key) if run.curve else ():
                at.setdefault(step, []).append(value)
        points = [(float(step), statistics.fmean(values)) for step, values in sorted(at.items())]
        series.append(Series(_css(by_algo, algo), name_of(algo), points))
    return series


def _by_tokens(by_algo: dict[str, list[AlgoRun]]) -> list[Series]:
    """Mean exact match over mean tokens so far, step by step, as far as every seed got."""
    series = []
    for algo, runs in by_algo.items():
        curves = [run.curve for run in runs if run.curve]
        if not curves:
            continue
        points = []
        totals = [tokens_so_far(curve) for curve in curves]
        for i in range(min(map(len, totals))):
            ems = [curve.steps[i].get("scout/em") for curve in curves]
            if (em := _mean(ems)) is not None:
                points.append((statistics.fmean(t[i] for t in totals) / 1000, em))
        series.append(Series(_css(by_algo, algo), name_of(algo), points))
    return series


def _last_step(runs: Sequence[AlgoRun]) -> float:
    return max(float(run.curve.at[-1]) for run in runs if run.curve)


def _last_tokens(runs: Sequence[AlgoRun]) -> float:
    return max(tokens_so_far(run.curve)[-1] / 1000 for run in runs if run.curve)


def _css(by_algo: dict[str, list[AlgoRun]], algo: str) -> str:
    """A colour by place among what is drawn: see report.css."""
    return f"line{[a for a in by_algo if a != START].index(algo) + 1}" if algo != START else "line0"
