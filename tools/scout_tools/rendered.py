"""Observations ready to send, kept in each worker: the shortest way from a repeated query to its answer."""

from __future__ import annotations

import time
from collections import OrderedDict

_OVERHEAD_BYTES = 250  # of one entry: the two objects and its place in the table


def normalise(query: str) -> str:
    """The same text for queries that no backend tells apart: spaces collapsed, ASCII in lower case.

    Other scripts keep their case: backends disagree on how to fold it.
    """
    query = " ".join(query.split())
    return query.lower() if query.isascii() else query


class Rendered:
    """Least recently used out first, bounded by bytes.

    Args:
        max_bytes: 0 keeps nothing.
        keep_s: how long an entry may be used; infinite for a backend that never changes.
    """

    def __init__(self, max_bytes: int, keep_s: float = float("inf")) -> None:
        self.max_bytes, self.keep_s, self.n_bytes = max_bytes if keep_s > 0 else 0, keep_s, 0
        self._kept: OrderedDict[str, tuple[bytes, float]] = OrderedDict()

    def get(self, key: str) -> bytes | None:
        found = self._kept.get(key)
        if found is None:
            return None
        if found[1] < time.monotonic():
            self._drop(key)
            return None
        self._kept.move_to_end(key)
        return found[0]

    def put(self, key: str, value: bytes) -> None:
        cost = _cost(key, value)
        if cost > self.max_bytes // 8:  # one giant would push out everybody else
            return
        if key in self._kept:
            self._drop(key)
        self._kept[key] = (value, time.monotonic() + self.keep_s)
        self.n_bytes += cost
        while self.n_bytes > self.max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: str) -> None:
        self.n_bytes -= _cost(key, self._kept.pop(key)[0])

    def __len__(self) -> int:
        return len(self._kept)


def _cost(key: str, value: bytes) -> int:
    return len(key) + len(value) + _OVERHEAD_BYTES
