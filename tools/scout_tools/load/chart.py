"""A load test as one HTML page with SVG charts; it needs no network and no library."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence

from scout_tools.load.samples import Sample, Summary

_W, _H, _LEFT, _BOTTOM, _TOP = 860, 240, 64, 34, 12
_COLOURS = ("#4477aa", "#ee7733", "#cc3311")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "svg{width:100%;height:auto}text{font-size:12px;fill:#555}table{border-collapse:collapse}"
    "td{padding:.1rem 1.2rem .1rem 0}td+td{text-align:right;font-variant-numeric:tabular-nums}"
)


def page(title: str, summary: Summary, samples: Sequence[Sample]) -> str:
    """The whole page: the numbers, latency and rate over time, and how latencies are spread."""
    rows = {
        "requests": f"{summary.n}",
        "time": f"{summary.wall_s:.1f} s",
        "rate": f"{summary.per_second:.1f} /s",
        "mean": f"{summary.mean_ms:.2f} ms",
        "p50 / p95 / p99": f"{summary.p50_ms:.2f} / {summary.p95_ms:.2f} / {summary.p99_ms:.2f} ms",
        "longest": f"{summary.max_ms:.2f} ms",
        **{f"outcome {name}": f"{n}" for name, n in summary.outcomes.items()},
        **{f"cache {name}": f"{n}" for name, n in summary.caches.items()},
    }
    table = "".join(f"<tr><td>{html.escape(name)}<td>{value}" for name, value in rows.items())
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title>"
        f"<style>{_STYLE}</style><h1>{html.escape(title)}</h1><table>{table}</table>"
        f"<h2>Latency over time</h2>{_over_time(samples)}<h2>Requests per second</h2>{_rate(samples)}"
        f"<h2>Spread of latencies</h2>{_spread(samples)}"
    )


def _windows(samples: Sequence[Sample]) -> tuple[float, list[list[float]]]:
    """(width in seconds, latencies in ms of the requests that started in each window)."""
    zero = min(sample.start_s for sample in samples)
    length = max(sample.start_s for sample in samples) - zero
    width = max(length / 60, 0.05)
    cells: list[list[float]] = [[] for _ in range(int(length / width) + 1)]
    for sample in samples:
        cells[int((sample.start_s - zero) / width)].append(sample.latency_s * 1000)
    return width, cells


def _over_time(samples: Sequence[Sample]) -> str:
    width, cells = _windows(samples)
    lines = []
    for name, p in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        points = [(i * width, sorted(c)[min(len(c) - 1, int(p * len(c)))]) for i, c in enumerate(cells) if c]
        lines.append((name, points))
    return _plot(lines, "seconds", "ms", logarithmic=True)


def _rate(samples: Sequence[Sample]) -> str:
    width, cells = _windows(samples)
    return _plot([("", [(i * width, len(cell) / width) for i, cell in enumerate(cells)])], "seconds", "/s")


def _spread(samples: Sequence[Sample]) -> str:
    times = sorted(sample.latency_s * 1000 for sample in samples)
    step = max(1, len(times) // 400)
    points = [(100 * i / len(times), times[i]) for i in range(0, len(times), step)]
    return _plot([("", points)], "percent of the requests were faster", "ms", logarithmic=True)


def _plot(
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    x_unit: str,
    y_unit: str,
    logarithmic: bool = False,
) -> str:
    """Lines in one frame, with labels at the ends of the axes and a legend."""
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    right, top = max(xs) or 1.0, max(ys) or 1.0
    floor = max(min(y for y in ys if y > 0), top / 1e6) if logarithmic and any(y > 0 for y in ys) else 0.0
    scale: Callable[[float], float]
    if floor and floor < top:

        def scale(y: float) -> float:
            return math.log(max(y, floor) / floor) / math.log(top / floor)
    else:

        def scale(y: float) -> float:
            return y / top

    def place(x: float, y: float) -> str:
        high = _H - _BOTTOM - _TOP
        return f"{_LEFT + x / right * (_W - _LEFT - 10):.1f},{_H - _BOTTOM - scale(y) * high:.1f}"

    frame = f"M{_LEFT} {_TOP}V{_H - _BOTTOM}H{_W}"
    parts = [f'<svg viewBox="0 0 {_W} {_H}" role="img"><path d="{frame}" fill="none" stroke="#999"/>']
    for number, (name, points) in enumerate(lines):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(place(x, y) for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(f'<text x="{_W - 120 + 40 * number}" y="{_TOP + 4}" style="fill:{colour}">{name}</text>')
    parts += [
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{top:.3g}</text>',
        f'<text x="{_LEFT - 6}" y="{_H - _BOTTOM}" text-anchor="end">{floor:.3g}</text>',
        f'<text x="{_LEFT - 6}" y="{(_TOP + _H - _BOTTOM) / 2:.0f}" text-anchor="end">{y_unit}</text>',
        f'<text x="{_LEFT}" y="{_H - 12}">0</text>',
        f'<text x="{_W - 10}" y="{_H - 12}" text-anchor="end">{right:.3g} {x_unit}</text></svg>',
    ]
    return "".join(parts)
