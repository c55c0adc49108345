"""The three charts of an audit, as SVG: bands along the file, shares side by side, a histogram."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

WIDTH, HEIGHT = 360.0, 170.0
LEFT, TOP, BOTTOM = 34.0, 8.0, 22.0
BASE = HEIGHT - BOTTOM
COLOURS = 6


def _svg(parts: Sequence[str], height: float = HEIGHT) -> str:
    return f'<svg class="chart" viewBox="0 0 {WIDTH:g} {height:g}" role="img">{"".join(parts)}</svg>'


def _text(x: float, y: float, text: str, anchor: str = "middle", css: str = "tick") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(css: str, x: float, y: float, width: float, height: float, tip: str = "") -> str:
    shape = f'class="{css}" x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}"'
    return f"<rect {shape}>{f'<title>{escape(tip)}</title>' if tip else ''}</rect>"


def stack(series: Mapping[str, Sequence[float]]) -> str:
    """Bands whose heights are shares; one column per stretch of the file."""
    parts, bins = [], len(next(iter(series.values())))
    width, height = (WIDTH - LEFT) / bins, BASE - TOP
    for i in range(bins):
        y = BASE
        for colour, (name, shares) in enumerate(series.items()):
            part = shares[i] * height
            if part > 0.01:
                y -= part
                tip = f"{name} {shares[i]:.1%}"
                parts.append(_rect(f"c{colour % COLOURS}", LEFT + i * width, y, width + 0.1, part, tip))
    for share in (0.0, 0.5, 1.0):
        parts.append(_text(LEFT - 5, BASE - share * height + 4, f"{share:.0%}", "end"))
    parts.append(_text(LEFT, HEIGHT - 6, "first row", "start"))
    parts.append(_text(WIDTH, HEIGHT - 6, "last row", "end"))
    legend = "".join(
        f'<span><i class="swatch c{i % COLOURS}"></i>{escape(name)}</span>' for i, name in enumerate(series)
    )
    return f'{_svg(parts)}<p class="key">{legend}</p>'


def compare(shown: Mapping[str, int], whole: Mapping[str, int], top: int = 8) -> str:
    """A bar per group: its share of ``shown``, and in pale its share of ``whole``."""
    total, total_whole = sum(shown.values()) or 1, sum(whole.values()) or 1
    names = list(whole or shown)[:top]
    step, label = 30.0, 96.0
    room = WIDTH - label - 58
    parts = []
    for i, name in enumerate(names):
        y = TOP + i * step
        share, expected = shown.get(name, 0) / total, whole.get(name, 0) / total_whole
        parts.append(_text(label - 6, y + 15, name if len(name) < 15 else name[:13] + "…", "end"))
        if whole:
            parts.append(_rect(f"pale c{i % COLOURS}", label, y, expected * room, 22))
        parts.append(_rect(f"c{i % COLOURS}", label, y + 5, share * room, 12))
        said = f"{share:.1%}" if share >= 0.0005 else "<0.1%" if share else "none"
        parts.append(_text(label + max(share, expected) * room + 5, y + 15, said, "start", "value"))
    return _svg(parts, TOP + step * len(names) + 4)


def bars(pairs: Sequence[tuple[int, int]], limit: int | None = None) -> str:
    """A histogram of ``(value, rows)``, with a line at the limit."""
    low, high = pairs[0][0], max(pairs[-1][0], limit or 0)
    gaps = [b - a for (a, _), (b, _) in pairwise(pairs)]
    unit = min(gaps, default=1)
    slots = (high - low) // unit + 1
    width = (WIDTH - LEFT - 8) / slots
    most = max(n for _, n in pairs)
    parts = [_text(LEFT - 5, TOP + 8, _short(most), "end"), _text(LEFT - 5, BASE + 3, "0", "end")]
    for value, n in pairs:
        height = n / most * (BASE - TOP)
        x = LEFT + (value - low) / unit * width
        tip = f"{value:,}: {n:,} rows"
        parts.append(_rect("c0", x, BASE - height, max(width - 0.5, 0.5), height, tip))
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{BASE}" x2="{WIDTH}" y2="{BASE}"/>')
    parts.append(_text(LEFT, HEIGHT - 6, f"{low:,}", "start"))
    parts.append(_text(WIDTH - 4, HEIGHT - 6, f"{high:,}", "end"))
    if limit is not None:
        x = LEFT + (limit - low) / unit * width
        parts.append(f'<line class="limit" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BASE}"/>')
    return _svg(parts)


def _short(n: int) -> str:
    return f"{n / 1000:.0f}k" if n >= 10_000 else f"{n:,}" if n < 1000 else f"{n / 1000:.1f}k"
