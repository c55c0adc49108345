"""GET /metrics: the counters of all workers in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping

from scout_tools.counters import GAUGES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_HELP = {
    "scout_requests_total": "requests answered, by route and class of status",
    "scout_request_seconds": "from a request's first handling to its answer",
    "scout_search_seconds": "time of one search that no rendered observation answered",
    "scout_actions_total": "actions, by what they asked for",
    "scout_cache_hits_total": "answers that did not reach the backend, by level of the cache",
    "scout_cache_misses_total": "lookups that found nothing, by level of the cache",
    "scout_infra_errors_total": "outages of the backend, by kind; each is also an outcome of its action",
    "scout_rejected_total": "requests and connections turned away, by reason",
    "scout_worker_starts_total": "worker processes started; above scout_workers, some were replaced",
    "scout_in_flight": "requests being answered",
    "scout_queue_depth": "searches running or waiting for the backend",
    "scout_connections": "open connections",
    "scout_draining": "workers that finish what they have and accept nothing new",
    "scout_workers": "worker processes configured",
}


def prometheus_text(totals: Mapping[str, float]) -> str:
    """All series, sorted by name, with HELP and TYPE; buckets come out cumulative."""
    families: dict[str, list[tuple[str, float]]] = {}
    histograms = {name.partition("_bucket{")[0] for name in totals if "_bucket{" in name}
    for name, value in totals.items():
        bare = name.partition("{")[0]
        stem = bare.removesuffix("_bucket").removesuffix("_sum")
        families.setdefault(stem if stem in histograms else bare, []).append((name, value))
    lines: list[str] = []
    for family, series in sorted(families.items()):
        if family in _HELP:
            lines.append(f"# HELP {family} {_HELP[family]}")
        lines.append(f"# TYPE {family} {_type(family, family in histograms)}")
        if family in histograms:
            series = _cumulative(series)
        lines += [f"{name} {value:.17g}" for name, value in series]
    return "\n".join(lines) + "\n"


def _type(family: str, is_histogram: bool) -> str:
    if is_histogram:
        return "histogram"
    return "gauge" if family in GAUGES or not family.endswith("_total") else "counter"


def _cumulative(series: list[tuple[str, float]]) -> list[tuple[str, float]]:
    """Running sums over each label set's buckets (which come in order), and the count that ends them."""
    lines: list[tuple[str, float]] = []
    total = 0.0
    for name, value in series:
        if "_bucket{" not in name:
            lines.append((name, value))
            continue
        total += value
        lines.append((name, total))
        if 'le="+Inf"' in name:
            labels = name.partition("{")[2].removesuffix("}").rpartition("le=")[0].rstrip(",")
            stem = name.partition("_bucket{")[0]
            lines.append((f"{stem}_count{{{labels}}}" if labels else f"{stem}_count", total))
            total = 0.0
    return lines
