"""A progress bar with the time left, on stderr, for whatever takes more than a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(label: str, total: int, unit_is_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar; the function that it gives takes the amount done since the last call."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    amount = DownloadColumn() if unit_is_bytes else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # Without a terminal (logs, tests) the result line is enough.
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(label, total=total)
        yield lambda amount_done: progress.advance(task, amount_done)
