"""The small part of SVG that the charts need: elements, scales, ticks, axes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 320.0, 190.0
LEFT, RIGHT, TOP, BOTTOM = 42.0, 12.0, 10.0, 26.0
BASE = HEIGHT - BOTTOM  # y of the x axis


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from data to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def element(tag: str, css: str, body: str = "", **attributes: float | str) -> str:
    """One element. Attribute values and the class are escaped; ``body`` is markup already."""
    words = [f'class="{escape(css)}"']
    for name, value in attributes.items():
        shown = value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        words.append(f'{name.replace("_", "-")}="{escape(shown)}"')
    return f"<{tag} {' '.join(words)}>{body}</{tag}>"


def tooltip(text: str) -> str:
    """What a reader sees who rests the pointer on the element around it."""
    return f"<title>{escape(text)}</title>"


def picture(title: str, parts: Iterable[str], width: float = WIDTH) -> str:
    """A whole drawing of ``width`` x `HEIGHT` with its name for readers who cannot see it."""
    box = f"0 0 {width:g} {HEIGHT:g}"
    return element("svg", "chart", "".join(parts), viewBox=box, role="img", aria_label=title)


def label(x: float, y: float, text: str, anchor: str = "middle", css: str = "tick") -> str:
    """Text at a point; ``anchor`` is start, middle or end."""
    return element("text", css, escape(text), x=x, y=y, text_anchor=anchor)


def line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    """A straight line."""
    return element("line", css, x1=x1, y1=y1, x2=x2, y2=y2)


def path(points: Sequence[tuple[float, float]], x_of: Scale, y_of: Scale, css: str) -> str:
    """A line through the points."""
    steps = [f"{'L' if i else 'M'}{x_of(x):.1f},{y_of(y):.1f}" for i, (x, y) in enumerate(points)]
    return element("path", css, d=" ".join(steps))


def nice_ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers that cover [low, high], about ``count`` steps (Heckbert, Graphics Gems, 1990)."""
    if (high - low) / count < sys.float_info.min:  # also a width that vanishes when divided
        pad = abs(low) * 0.1 or 1.0
        low, high = low - pad, high + pad
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [k * step for k in range(first, last + 1)]


def tick_label(value: float) -> str:
    """A number as short as a tick needs it."""
    if abs(value) >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


def y_axis(ticks: Sequence[float], y_of: Scale, width: float = WIDTH) -> list[str]:
    """Grid lines with their numbers."""
    parts = []
    for tick in ticks:
        y = y_of(tick)
        parts.append(line("grid", LEFT, y, width - RIGHT, y))
        parts.append(label(LEFT - 6, y + 3.5, tick_label(tick), "end"))
    return parts


def step_axis(x_max: float, x_of: Scale) -> list[str]:
    """Whole numbers under the x axis."""
    ticks = [t for t in nice_ticks(0, max(x_max, 1)) if t <= x_max and t == int(t)]
    return [label(x_of(t), HEIGHT - 8, tick_label(t)) for t in ticks]
