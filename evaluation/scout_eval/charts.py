"""The two kinds of chart in a report, as SVG text. Colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scout_eval.svg import (
    BASE,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    element,
    label,
    line,
    nice_ticks,
    path,
    picture,
    step_axis,
    tooltip,
    y_axis,
)

SMOOTH = 5  # steps of the trailing mean
STAGE_WIDTH = 250.0
MAX_MARKS = 400  # more points than this get no tooltip of their own


@dataclass(frozen=True, slots=True)
class Series:
    """One line: a CSS class for its colour, a name, and (x, y) points with ascending x.

    ``first`` is the x of the series' own step 0, so that a tooltip can name the run's own step.
    """

    css: str
    name: str
    points: Sequence[tuple[float, float]]
    first: float = 0.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One dot of a stage chart: a mean with its interval, or None where there is none."""

    label: str
    mean: float | None
    low: float = 0.0
    high: float = 0.0


def trailing_mean(points: Sequence[tuple[float, float]], window: int = SMOOTH) -> list[tuple[float, float]]:
    """The mean of each point and the ``window - 1`` before it."""
    ys = [y for _, y in points]
    return [
        (x, sum(part := ys[max(0, i + 1 - window) : i + 1]) / len(part)) for i, (x, _) in enumerate(points)
    ]


def line_chart(title: str, series: Sequence[Series], dividers: Sequence[float], x_max: float) -> str:
    """One panel: a thin line of the values and a bold one of their trailing mean; empty without points.

    Args:
        title: what is drawn, for readers of the picture's text.
        series: lines one after another on one x axis; lines without points are left out.
        dividers: x positions where one run ends and the next begins.
        x_max: right end of the axis, the same for all panels.
    """
    drawn = [s for s in series if s.points]
    if not drawn:
        return ""
    ys = [y for s in drawn for _, y in s.points]
    low, high = min(ys), max(ys)
    if 0 <= low < 0.5 * high:  # a range that nearly reaches zero is read against zero
        low = 0.0
    ticks = nice_ticks(low, high)
    x_of = Scale(0, max(x_max, 1), LEFT, WIDTH - RIGHT)
    y_of = Scale(ticks[0], ticks[-1], BASE, TOP)
    parts = [*y_axis(ticks, y_of), *step_axis(x_max, x_of)]
    parts += [line("divider", x_of(x), TOP, x_of(x), BASE) for x in dividers]
    for s in drawn:
        smooth = trailing_mean(s.points) if len(s.points) >= 2 * SMOOTH else None
        parts.append(path(s.points, x_of, y_of, f"{s.css} {'raw' if smooth else 'line'}"))
        if smooth:
            parts.append(path(smooth, x_of, y_of, f"{s.css} line"))
        if len(s.points) == 1:
            x, y = s.points[0]
            parts.append(element("circle", f"{s.css} dot", cx=x_of(x), cy=y_of(y), r=3))
        if len(s.points) <= MAX_MARKS:
            for x, y in s.points:
                tip = tooltip(f"{s.name} step {x - s.first:g}: {y:.4g}")
                parts.append(element("circle", f"{s.css} mark", tip, cx=x_of(x), cy=y_of(y), r=4))
    return picture(title, parts)


def stage_chart(title: str, bars: Sequence[Bar], marks: Sequence[tuple[int, str, float]] = ()) -> str:
    """Means with intervals, one per stage, from 0 to 1.

    Args:
        title: what is drawn.
        bars: the stages in order.
        marks: small marks of the controls: (index of the stage, "blank" or "shuffled", value).
    """
    x_of = Scale(-0.5, max(len(bars) - 0.5, 0.5), LEFT - 8, STAGE_WIDTH - RIGHT)
    y_of = Scale(0, 1, BASE, TOP + 6)
    parts = y_axis([0, 0.25, 0.5, 0.75, 1.0], y_of, STAGE_WIDTH)
    known = [(float(i), bar.mean) for i, bar in enumerate(bars) if bar.mean is not None]
    if len(known) > 1:
        parts.append(path(known, x_of, y_of, "stage link"))
    for i, bar in enumerate(bars):
        x = x_of(i)
        parts.append(label(x, HEIGHT - 8, bar.label))
        if bar.mean is None:
            parts.append(label(x, BASE - 8, "missing", css="tick absent"))
            continue
        y, tip = y_of(bar.mean), tooltip(f"{bar.label}: {bar.mean:.3f} [{bar.low:.3f}, {bar.high:.3f}]")
        parts.append(line("stage whisker", x, y_of(bar.low), x, y_of(bar.high)))
        parts.append(element("circle", "stage dot", tip, cx=x, cy=y, r=4.5))
        parts.append(label(x + 8, y - 6, f"{bar.mean:.2f}", "start", "value"))
    for i, control, value in marks:
        tip, y = tooltip(f"{bars[i].label}, {control}: {value:.3f}"), y_of(value)
        if control == "blank":
            parts.append(element("circle", "control blank", tip, cx=x_of(i) - 11, cy=y, r=3.5))
        else:
            x = x_of(i) + 11
            shape = f"M{x - 4:.1f},{y + 3:.1f} L{x + 4:.1f},{y + 3:.1f} L{x:.1f},{y - 4:.1f} Z"
            parts.append(element("path", "control shuffled", tip, d=shape))
    return picture(title, parts, STAGE_WIDTH)
