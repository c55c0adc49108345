"""One line that says how far, how fast and how much longer; live on a terminal, now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.status import Status

PLAIN_EVERY_S = 10.0  # seconds between lines where the output is a file


def clock(seconds: float) -> str:
    """``m:ss`` or ``h:mm:ss``."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


class Progress:
    """A progress line on stderr; use as a context manager.

    Args:
        what: what is being done.
        total: units of work over all.
        done: units that an earlier run has done; they do not count for the speed.
    """

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self.what, self.total, self.done = what, total, done
        self._start = time.monotonic()
        self._pace: tuple[float, int] | None = (
            None  # (moment, done) of the first update: start-up is not pace
        )
        self._shown = self._start
        self._live = sys.stderr.isatty()
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        if self._live:
            from rich.console import Console

            self._status = Console(stderr=True).status(self.what)
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
        print(self.line(""), file=sys.stderr, flush=True)

    def line(self, note: str) -> str:
        """The line as text."""
        now = time.monotonic()
        spent = now - self._start
        since, first = self._pace or (now, self.done)
        speed = (self.done - first) / (now - since) if now > since else 0.0
        share = self.done / self.total if self.total else 1.0
        left = clock((self.total - self.done) / speed) if speed > 0 else "?"
        parts = [
            f"{self.what} {self.done}/{self.total} ({share:.0%})",
            f"{clock(spent)} spent",
            f"{left} left",
            note,
        ]
        return " · ".join(part for part in parts if part)

    def update(self, done: int, note: str = "") -> None:
        """Say that ``done`` units are finished."""
        self.done = done
        now = time.monotonic()
        self._pace = self._pace or (now, done)
        if self._status is not None:
            self._status.update(self.line(note))
        elif now - self._shown >= PLAIN_EVERY_S:
            self._shown = now
            print(self.line(note), file=sys.stderr, flush=True)
