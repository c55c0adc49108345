"""A chart of means with their intervals, one a line, on one axis from 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scout_eval.statistics import Estimate
from scout_eval.svg import Scale, element, label, line, tooltip

WIDTH, ROW, TOP, BOTTOM, LEFT, RIGHT = 640.0, 20.0, 8.0, 24.0, 210.0, 52.0


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the chart. ``css`` is main, taken (evidence taken away) or ceiling."""

    name: str
    value: Estimate
    css: str = "main"


def forest(title: str, lines: Sequence[Line]) -> str:
    """The chart as SVG; empty without lines."""
    if not lines:
        return ""
    height = TOP + ROW * len(lines) + BOTTOM
    x_of = Scale(0, 1, LEFT, WIDTH - RIGHT)
    base = height - BOTTOM
    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(line("grid", x_of(tick), TOP, x_of(tick), base))
        parts.append(label(x_of(tick), height - 8, f"{tick:g}"))
    for i, item in enumerate(lines):
        y, v = TOP + ROW * (i + 0.5), item.value
        tip = tooltip(f"{item.name}: {v.mean:.3f} [{v.low:.3f}, {v.high:.3f}]")
        parts.append(label(LEFT - 12, y + 4, item.name, "end", "name"))
        parts.append(line(f"whisker {item.css}", x_of(v.low), y, x_of(v.high), y))
        parts.append(element("circle", f"dot {item.css}", tip, cx=x_of(v.mean), cy=y, r=4.5))
        parts.append(label(WIDTH - RIGHT + 12, y + 4, f"{v.mean:.3f}", "start", "name"))
    box = f"0 0 {WIDTH:g} {height:g}"
    return element("svg", "chart forest", "".join(parts), viewBox=box, role="img", aria_label=title)
