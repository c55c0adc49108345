"""Progress of an evaluation: a bar with ETA on a terminal, a line now and then in a log file."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from scout_protocol.records import Trace

LOG_EVERY_S = 15.0


class EvalProgress:
    """Counts trajectories and shows the running exact match; use as a context manager."""

    def __init__(self, console: Console, title: str, total: int, already: int) -> None:
        self.console, self.title, self.total = console, title, total
        self.finished, self.already = already, already
        self.n_scored, self.em_sum = 0, 0.0
        self.start = self.last_line = time.monotonic()
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("EM {task.fields[em]}"),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task(title, total=total, completed=already, em="–")

    def __enter__(self) -> EvalProgress:
        self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bar.stop()

    def step(self, trace: Trace) -> None:
        """Count one finished, scored trajectory."""
        self.finished += 1
        if trace.score:
            self.n_scored += 1
            self.em_sum += float(trace.score["em"])
        em = f"{self.em_sum / self.n_scored:.3f}" if self.n_scored else "–"
        self.bar.update(self.task, completed=self.finished, em=em)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line >= LOG_EVERY_S:
            self.last_line = now
            eta_s = (now - self.start) / (self.finished - self.already) * (self.total - self.finished)
            self.console.print(
                f"{self.title}: {self.finished}/{self.total}, EM {em}, ETA {eta_s:.0f} s", highlight=False
            )
