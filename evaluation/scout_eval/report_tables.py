"""The stage table, once as cells: the page and the terminal both print these."""

from __future__ import annotations

from dataclasses import dataclass

from scout_eval.metrics import Estimate
from scout_eval.report_data import CONTROLS, RunData, Stage

MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as text, and its interval where it has one. Both empty texts never occur: see `MISSING`."""

    text: str
    interval: str = ""

    @property
    def missing(self) -> bool:
        """There is no such number."""
        return self.text == MISSING


def stage_table(run: RunData) -> tuple[list[str], list[list[Cell]]]:
    """Column names and one row of cells per stage."""
    hops = run.hops()
    names = ["stage", "n", "EM"]
    names += [f"EM {h} hop{'' if h == '1' else 's'}" for h in hops]
    names += ["F1", "answered", "turns", "searches", *(f"EM {control}" for control in CONTROLS)]
    return names, [_row(stage, hops) for stage in run.stages]


def _row(stage: Stage, hops: list[str]) -> list[Cell]:
    gone = Cell(MISSING)
    cells = [Cell(stage.label)]
    if stage.summary is None:
        cells += [gone] * (6 + len(hops))
    else:
        groups, overall = stage.summary.metrics.by.get("hops", {}), stage.summary.metrics.overall
        cells += [Cell(str(overall.n)), _estimate(overall.em)]
        cells += [_estimate(groups[h].em) if h in groups else gone for h in hops]
        cells += [_estimate(overall.f1), Cell(f"{overall.format:.0%}")]
        cells += [Cell(f"{overall.turns:.2f}"), Cell(f"{overall.searches:.2f}")]
    for control in CONTROLS:
        summary = stage.controls.get(control)
        cells.append(_estimate(summary.metrics.overall.em) if summary else gone)
    return cells


def _estimate(value: Estimate) -> Cell:
    return Cell(f"{value.mean:.3f}", f"{value.low:.3f}–{value.high:.3f}")


def duration(seconds: float) -> str:
    """Seconds for people: ``8.4 s``, ``3 min 20 s``, ``2 h 05 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
