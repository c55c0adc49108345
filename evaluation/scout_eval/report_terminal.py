"""The stage table of a report on the terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scout_eval.report_data import RunData
from scout_eval.report_tables import Cell, duration, stage_table

_SHORT = {
    "EM": "EM [95 %]",
    "EM 1 hop": "1 hop",
    "EM 2 hops": "2 hops",
    "EM 3 hops": "3 hops",
    "searches": "search",
    "EM blank": "blank",
    "EM shuffled": "shuf.",
}


def print_report(run: RunData, console: Console) -> None:
    """Print the table, the times and what is missing."""
    names, rows = stage_table(run)
    table = Table(box=box.SIMPLE_HEAD, padding=0)
    shown = [i for i, name in enumerate(names) if name not in ("n", "answered")]  # what fits into 80 columns
    for i in shown:
        table.add_column(_SHORT.get(names[i], names[i]), justify="right" if i else "left", no_wrap=True)
    for stage, row in zip(run.stages, rows, strict=True):
        name = stage.name if stage.name == "base" else stage.name.upper()
        table.add_row(name, *(_cell(row[i], names[i] == "EM") for i in shown[1:]))
    console.print(table)
    counts = list(dict.fromkeys(str(s.metrics.overall.n) for s in run.summaries()))
    console.print(
        f"  {' / '.join(counts) or 'no'} questions; [95 %] over questions", soft_wrap=True, markup=False
    )
    if run.times:
        times = ", ".join(f"{t.name} {'–' if t.wall_s is None else duration(t.wall_s)}" for t in run.times)
        console.print(f"  wall time: {escape(times)}", soft_wrap=True)
    for warning in run.warnings:
        console.print(f"  [yellow]{escape(warning)}[/]", soft_wrap=True)
    if run.missing:
        console.print(f"  [yellow]missing:[/] {escape(', '.join(run.missing))}", soft_wrap=True)


def _cell(cell: Cell, with_interval: bool) -> str:
    if cell.missing:
        return "[dim]–[/]"
    text = cell.text.removeprefix("0") if cell.text.startswith("0.") else cell.text
    return escape(f"{text} [{cell.interval.replace('0.', '.')}]" if with_interval else text)
