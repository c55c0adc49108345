"""What the launcher sees of a run: its files. Progress, stalls, and the line that says why it failed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_OURS = re.compile(r"\[scout\] error: (.*)")
_RAISED = re.compile(
    r"^(?:\x1b\[\d+m)?(?:\([^)]*\)(?:\x1b\[0m)?\s*)?((?:[\w.]+\.)?\w*(?:Error|Exception|Killed)\b.*)"
)


def failure(log_path: Path) -> str:
    """The last meaningful error of a console log: ours if there is one, else the last exception raised."""
    if not log_path.is_file():
        return "the run left no log"
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    for pattern in (_OURS, _RAISED):
        for line in reversed(lines):
            if found := pattern.search(line):
                return found.group(1).strip()
    said = (line.strip() for line in reversed(lines))
    return next((line for line in said if line and not line.startswith("[scout]")), "the log is empty")


class Follower:
    """Reads new lines of ``metrics.jsonl`` and notices when nothing grows any more.

    Args:
        run_dir: the run's folder.
        stall_s: longest time without a new trace, metric or (before the first step) log line; 0: no limit.
        now: a monotonic clock, in seconds.
    """

    def __init__(self, run_dir: Path, stall_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.run_dir, self.stall_s, self._now = run_dir, stall_s, now
        metrics = run_dir / "metrics.jsonl"
        self._offset = metrics.stat().st_size if metrics.is_file() else 0
        self._sizes: tuple[int, ...] = ()
        self._grown_at = now()
        self._started = False

    def new_steps(self) -> list[dict[str, Any]]:
        """Metrics of the steps finished since the last call."""
        path = self.run_dir / "metrics.jsonl"
        if not path.is_file():
            return []
        with path.open("rb") as file:
            file.seek(self._offset)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    def stalled(self) -> bool:
        """Whether nothing has grown for ``stall_s``."""
        names = ["metrics.jsonl", "traces.jsonl"] + ([] if self._started else ["console.log"])
        sizes = tuple(p.stat().st_size if (p := self.run_dir / n).is_file() else 0 for n in names)
        if sizes != self._sizes:
            if self._sizes and sizes[:2] != self._sizes[:2]:
                self._started = True
                sizes = sizes[:2]
            self._sizes, self._grown_at = sizes, self._now()
        return bool(self.stall_s) and self._now() - self._grown_at > self.stall_s


def step_line(metrics: dict[str, Any], total: int) -> str:
    """One step in one line for people; what is unknown is left out."""
    parts = [f"step {metrics['step']}/{total}"]
    for key, name, form in (
        ("scout/em", "EM", "{:.3f}"),
        ("critic/score/mean", "reward", "{:.3f}"),
        ("scout/searches", "searches", "{:.2f}"),
        ("actor/grad_norm", "grad", "{:.3f}"),
        ("scout/groups_accept_rate", "accepted", "{:.2f}"),
        ("timing_s/step", "", "{:.1f} s"),
    ):
        if isinstance(metrics.get(key), int | float):
            parts.append(f"{name} {form.format(metrics[key])}".strip())
    if metrics.get("scout/infra_errors"):
        parts.append(f"{metrics['scout/infra_errors']} infra errors")
    return " · ".join(parts)


class Progress:
    """A bar with the time left on a terminal; one line a step elsewhere."""

    def __init__(self, done: int, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.console, self.total, self.start = Console(), total, time.monotonic()
        columns = (TextColumn("train"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("train", total=total, completed=done)

    def __enter__(self) -> Progress:
        self.bar.start()
        self.console.print("starting Ray and verl (20-60 s)")
        return self

    def __exit__(self, *_error: object) -> None:
        self.bar.stop()

    def show(self, metrics: dict[str, Any]) -> None:
        self.bar.update(self.task, completed=metrics["step"])
        self.console.print(step_line(metrics, self.total), highlight=False, soft_wrap=True)
