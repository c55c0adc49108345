"""What all workers must agree on about the upstream: how long it asked us to wait, whether it is down."""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

MAX_PAUSE_S = 3600.0  # a Retry-After beyond this (or a clock that jumped) is not believed


@dataclass
class _Row:
    """Wall-clock seconds, since the file outlives processes."""

    pause_until: float = 0.0
    failures: float = 0.0  # since the last success
    first_failure_at: float = 0.0
    open_until: float = 0.0
    opens: float = 0.0  # in a row: every one doubles the time until the next probe
    probing: float = 0.0
    changed_at: float = 0.0


_FORMAT = struct.Struct("<7d")


class SharedState:
    """The pause and the circuit breaker, in a file of 56 bytes under a lock.

    The breaker opens after ``failures`` failures in a row over at least ``over_s`` seconds: retries of a few
    bad queries between good ones must not shut out the good ones. While it is open nothing is asked. After
    ``cooldown_s`` (doubled each time, at most ``max_cooldown_s``) one caller may probe.

    Args:
        path: the file.
        clock: seconds; a test may bring its own.
    """

    def __init__(
        self,
        path: Path,
        failures: int = 8,
        over_s: float = 10.0,
        cooldown_s: float = 5.0,
        max_cooldown_s: float = 60.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._failures, self._over_s = failures, over_s
        self._cooldown_s, self._max_cooldown_s, self._clock = cooldown_s, max_cooldown_s, clock
        with self._changed():  # a disk that is full or read-only is told now, not at the first pause
            pass

    def close(self) -> None:
        os.close(self._fd)

    def paused_s(self) -> float:
        """Seconds until the upstream may be asked again; 0 if now."""
        return self._left(self._read().pause_until, MAX_PAUSE_S)

    def pause(self, seconds: float) -> None:
        """Nobody asks for this long; a longer pause stays."""
        with self._changed() as row:
            row.pause_until = max(row.pause_until, self._clock() + min(seconds, MAX_PAUSE_S))

    def closed(self) -> bool:
        """Whether the breaker lets calls through (says nothing about the pause)."""
        return self._left(self._read().open_until, self._max_cooldown_s) == 0.0

    def enter(self) -> bool:
        """May the upstream be called? After a cool-down only one caller may, until it is known how."""
        if self._read().opens == 0.0:
            return True
        with self._changed() as row:
            if row.opens == 0.0:
                return True
            if self._left(row.open_until, self._max_cooldown_s) > 0.0:
                return False
            # shuts out the others while this one probes; if it dies, another may try after the same time
            row.open_until, row.probing = self._clock() + self._cooldown_s, 1.0
            return True

    def succeeded(self) -> None:
        """The upstream answered: all is forgiven."""
        if self._read().failures or self._read().opens:
            with self._changed() as row:
                row.failures = row.first_failure_at = row.open_until = row.opens = row.probing = 0.0

    def failed(self) -> bool:
        """The upstream failed. True if this opened the breaker."""
        now = self._clock()
        with self._changed() as row:
            if row.failures == 0.0:
                row.first_failure_at = now
            row.failures += 1.0
            if row.opens > 0.0 and not row.probing and self._left(row.open_until, self._max_cooldown_s) > 0.0:
                return False  # one of those in flight when it opened
            long_enough = now - row.first_failure_at >= self._over_s
            if row.opens == 0.0 and not (row.failures >= self._failures and long_enough):
                return False
            wait = min(self._max_cooldown_s, self._cooldown_s * 2**row.opens)
            row.open_until, row.opens, row.probing = now + wait, min(row.opens + 1.0, 16.0), 0.0
            return row.opens == 1.0

    def _left(self, until: float, most: float) -> float:
        left = until - self._clock()
        return left if 0.0 < left <= most else 0.0

    def _read(self) -> _Row:
        raw = os.pread(self._fd, _FORMAT.size, 0)  # 56 bytes of one page: a read sees a whole write
        row = _Row(*_FORMAT.unpack(raw)) if len(raw) == _FORMAT.size else _Row()
        if row.changed_at > self._clock() + 1.0:  # the clock was set back: what was due is not due then
            row.pause_until = row.open_until = 0.0
        return row

    @contextmanager
    def _changed(self) -> Iterator[_Row]:
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # held for microseconds
        try:
            row = self._read()
            yield row
            row.changed_at = self._clock()
            os.pwrite(self._fd, _FORMAT.pack(*astuple(row)), 0)
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
