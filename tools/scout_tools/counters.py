"""Counters that all worker processes share: one row of numbers per worker in anonymous shared memory.

Only its worker writes a row, so no lock is needed, and whoever answers /metrics adds the rows up. A row
outlives its process: a worker that takes a dead one's place goes on counting where that one stopped.
An increment costs 0.05 µs; prometheus-client's files for several processes take 0.7 µs, its histogram 1.6 µs.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left
from collections.abc import Mapping

# A series is named as Prometheus writes it. Fixed ones have a place; others get one when first seen.
ROUTES = ("get_observation", "retrieve", "other")
STATUSES = ("2xx", "4xx", "5xx")
ACTIONS = ("search", "answer", "malformed", "finish", "retrieve")
BUCKETS_S = (
    0.0001,
    0.00025,
    0.0005,
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1,
    2.5,
    5,
    10,
    30,
)
_HISTOGRAMS = (*(f'scout_request_seconds{{route="{route}"}}' for route in ROUTES), "scout_search_seconds")
GAUGES = ("scout_in_flight", "scout_queue_depth", "scout_connections", "scout_draining")


def _bucket_names(series: str) -> list[str]:
    """The names of a histogram's cells: its buckets (not cumulative here), then its sum."""
    name, _, labels = series.partition("{")
    inside = labels.rstrip("}") + "," if labels else ""
    names = [f'{name}_bucket{{{inside}le="{bound}"}}' for bound in (*BUCKETS_S, "+Inf")]
    return [*names, f"{name}_sum{{{inside.rstrip(',')}}}" if labels else f"{name}_sum"]


FIXED: tuple[str, ...] = (
    *(f'scout_requests_total{{route="{r}",status="{s}"}}' for r in ROUTES for s in STATUSES),
    *(f'scout_actions_total{{action="{action}"}}' for action in ACTIONS),
    'scout_cache_hits_total{level="rendered"}',
    'scout_cache_misses_total{level="rendered"}',
    "scout_worker_starts_total",
    *GAUGES,
    *(name for series in _HISTOGRAMS for name in _bucket_names(series)),
)
PLACE: dict[str, int] = {name: place for place, name in enumerate(FIXED)}
HISTOGRAM: dict[str, int] = {series: PLACE[_bucket_names(series)[0]] for series in _HISTOGRAMS}
_N_BUCKETS = len(BUCKETS_S) + 1

N_OTHERS = 256  # series of a row that are not fixed
_NAME_BYTES = 120
_ROW_BYTES = 8 * len(FIXED) + N_OTHERS * (_NAME_BYTES + 8)


class Counters:
    """The shared memory of one server; make it before the workers are forked.

    Args:
        n_rows: one per worker.
    """

    def __init__(self, n_rows: int = 1) -> None:
        self._memory = memoryview(mmap.mmap(-1, n_rows * _ROW_BYTES))
        self.rows = [Row(self._memory[i * _ROW_BYTES : (i + 1) * _ROW_BYTES]) for i in range(n_rows)]

    def totals(self) -> dict[str, float]:
        """Every series, added up over the workers."""
        total: dict[str, float] = {}
        for row in self.rows:
            for name, value in row.read().items():
                total[name] = total.get(name, 0.0) + value
        return total


class Row:
    """The numbers of one worker. ``values[PLACE[name]] += 1`` is the fast way for a fixed series."""

    def __init__(self, memory: memoryview) -> None:
        self.values = memory[: 8 * len(FIXED)].cast("d")
        self._names = memory[8 * len(FIXED) : 8 * len(FIXED) + N_OTHERS * _NAME_BYTES]
        self._others = memory[8 * len(FIXED) + N_OTHERS * _NAME_BYTES :].cast("d")
        self._place: dict[str, int] = {}

    def begin(self) -> None:
        """What a worker does first: keep the counts of the one before it, forget its gauges."""
        for name in GAUGES:
            self.values[PLACE[name]] = 0.0
        self._place = {name: place for place, name in enumerate(self._read_names())}

    def add(self, series: str, amount: float = 1.0) -> None:
        """Add to a series, fixed or not."""
        if series in PLACE:
            self.values[PLACE[series]] += amount
        elif (place := self._other(series)) is not None:
            self._others[place] += amount

    def set(self, series: str, value: float) -> None:
        """Set a series, fixed or not."""
        if series in PLACE:
            self.values[PLACE[series]] = value
        elif (place := self._other(series)) is not None:
            self._others[place] = value

    def observe(self, first: int, seconds: float) -> None:
        """Count a time in the histogram that starts at ``first`` (from `HISTOGRAM`)."""
        values = self.values
        values[first + bisect_left(BUCKETS_S, seconds)] += 1.0
        values[first + _N_BUCKETS] += seconds

    def read(self) -> dict[str, float]:
        """All series of this row."""
        found = dict(zip(FIXED, self.values, strict=True))
        for place, name in enumerate(self._read_names()):
            found[name] = self._others[place]
        return found

    def starting_with(self, prefix: str) -> Mapping[str, float]:
        """The series whose name starts so, e.g. all infra errors by kind."""
        return {name: value for name, value in self.read().items() if name.startswith(prefix)}

    def _other(self, series: str) -> int | None:
        place = self._place.get(series)
        if place is None:
            place = len(self._place)
            name = series.encode()
            if place >= N_OTHERS or len(name) > _NAME_BYTES:
                return None  # too many kinds of something: the rest of the numbers stays right
            self._names[place * _NAME_BYTES : place * _NAME_BYTES + len(name)] = name
            self._place[series] = place
        return place

    def _read_names(self) -> list[str]:
        names = []
        for place in range(N_OTHERS):
            raw = bytes(self._names[place * _NAME_BYTES : (place + 1) * _NAME_BYTES]).rstrip(b"\0")
            if not raw:
                break
            names.append(raw.decode(errors="replace"))
        return names
