"""``scout view FILE_OR_RUN_DIR``: read trajectories."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from scout_diagnosis.choose import WHERE, Filters, Seen, passing, sample
from scout_diagnosis.plain import one_line
from scout_diagnosis.trace_files import Found, TornLine, stream, trace_files
from scout_protocol.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

PROGRESS_FROM_BYTES = 50 << 20  # below, reading takes about a second


def parser() -> argparse.ArgumentParser:
    """The command line, importing nothing heavy."""
    top = argparse.ArgumentParser(
        prog="scout view", description="Read trajectories, coloured by who wrote what."
    )
    top.add_argument("place", type=Path, metavar="FILE_OR_RUN_DIR", help="a traces.jsonl, or a run's folder")
    top.add_argument(
        "--where",
        choices=WHERE,
        metavar="|".join(WHERE[:3]) + "|STOP_REASON",
        help="right: exact match; wrong: another answer; infra: met an outage; "
        f"or what stopped it: {', '.join(WHERE[3:])}",
    )
    top.add_argument("--step", type=int, metavar="N", help="of this training step")
    top.add_argument("--stage", metavar="NAME", help="of this stage, e.g. grpo, sft, sft.blank")
    top.add_argument("--question", metavar="TEXT", help="whose question holds this text, or has it as its id")
    top.add_argument("--count", type=int, default=3, metavar="N", help="show at most N (default: 3)")
    top.add_argument("--seed", type=int, metavar="N", help="a random few of all that fit, not the first few")
    return top


def main(argv: list[str]) -> int:
    """Run the command."""
    args = parser().parse_args(argv)
    if args.count < 1:
        raise UserError("--count", args.count, "must be at least 1")
    filters = Filters(args.where, args.step, args.stage, args.question)
    files = trace_files(args.place)
    from rich.console import Console

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without Unicode shows "?", no traceback
    console, errors = Console(highlight=False), Console(stderr=True, highlight=False)
    torn: list[TornLine] = []
    seen = Seen()
    with ExitStack() as stack:
        source = _read(files, torn, console if console.is_terminal else errors, stack)
        fitting = passing(source, filters, seen)
        chosen = iter(sample(fitting, args.count, args.seed)) if args.seed is not None else fitting
        shown = _show(chosen, args.count, console)
    for line in torn:
        text = f"{one_line(line.path)}:{line.line}: torn last line, left out: still being written, or killed"
        errors.print(text, style="yellow", markup=False, soft_wrap=True)
    console.print(_summary(shown, seen, args.seed, files), markup=False, soft_wrap=True)
    return 0


def _read(files: list[Path], torn: list[TornLine], console: Console, stack: ExitStack) -> Iterator[Found]:
    """The traces of all files; a bar with ETA where it takes long and somebody looks."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    total = sum(path.stat().st_size for path in files)
    hidden = total < PROGRESS_FROM_BYTES or not console.is_terminal
    bar = Progress(
        "reading", BarColumn(), DownloadColumn(), TimeRemainingColumn(), console=console, transient=True,
        disable=hidden,
    )  # fmt: skip
    task = stack.enter_context(bar).add_task("", total=total)
    for path in files:
        for item in stream(path, (lambda _: None) if hidden else lambda n: bar.advance(task, n)):
            if isinstance(item, TornLine):
                torn.append(item)
            else:
                yield item


def _show(chosen: Iterator[Found], count: int, console: Console) -> int:
    """Print at most ``count``; returns how many there were. Reads no further than it must."""
    from scout_diagnosis.trajectory import legend, show

    shown = 0
    for shown, found in enumerate(chosen, start=1):
        if shown == 1:
            console.print(legend())
        show(found, shown, console)
        if shown == count:
            break
    return shown


def _summary(shown: int, seen: Seen, seed: int | None, files: list[Path]) -> str:
    where = f"{seen.read} read in {len(files)} file{'s' if len(files) > 1 else ''}"
    if not shown:
        if not seen.read:
            return f"no trajectories yet: {where}"
        low, high = seen.steps or (0, 0)
        stages = ", ".join(f"{one_line(name)} {n}" for name, n in sorted(seen.stages.items()))
        stops = ", ".join(f"{name} {n}" for name, n in sorted(seen.stops.items()))
        return f"none fits: {where}; steps {low} to {high}; stages: {stages}; stopped by: {stops}"
    if seed is not None:
        return f"{shown} of {seen.passed} that fit, drawn with seed {seed}; {where}"
    return f"the first {shown} that fit; {where} (--seed N draws from all, --count N shows more)"
