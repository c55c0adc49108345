"""A sheet on the terminal and as Markdown."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from scout_eval.report_traces import visible
from scout_eval.sheet import Block, Cell, Facts, Figure, Listing, Panels, Sheet, Table

MAX_ITEMS = 10  # of a listing on the terminal


def print_sheet(sheet: Sheet, console: Console, max_items: int = MAX_ITEMS) -> None:
    """Print a sheet; drawings are left out, listings are cut to ``max_items``.

    Intervals of a table that does not fit the terminal with them are left out: the files have them.
    """
    console.print(_text(sheet.title, style="bold"))
    console.print(_text(sheet.headline), soft_wrap=True)
    for warning in sheet.warnings:
        console.print(f"[yellow]! {escape(visible(warning))}[/]", soft_wrap=True)
    for block in sheet.blocks:
        if isinstance(block, Table):
            _print_table(block, console)
        elif isinstance(block, Facts):
            _print_facts(block, console)
        elif isinstance(block, Listing):
            _print_listing(block, console, max_items)


def _text(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style)


def _print_table(block: Table, console: Console) -> None:
    table = _rich_table(block, intervals=True)
    endless = console.options.update(max_width=10_000)  # else the measure is cut to the terminal's width
    if Measurement.get(console, endless, table).minimum > console.width:
        table = _rich_table(block, intervals=False)
    console.print()
    console.print(_text(block.title, style="bold"))
    if block.rows:
        console.print(table)
    if block.note:
        console.print(_text(block.note, style="dim"))


def _rich_table(block: Table, intervals: bool) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for i, name in enumerate(block.columns):
        text = not i or i in block.prose
        table.add_column(escape(name), justify="left" if text else "right", no_wrap=not text, overflow="fold")
    for i, row in enumerate(block.rows, start=1):
        cells = (_rich(cell) if intervals else _text(cell.text) for cell in row)
        table.add_row(*cells, end_section=i == block.rule_after)
    return table


def _rich(cell: Cell) -> Text:
    return _text(cell.text) + (_text(f"\n{cell.interval}", style="dim") if cell.interval else _text(""))


def _print_facts(block: Facts, console: Console) -> None:
    table = RichTable(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in block.pairs:
        table.add_row(escape(visible(name)), escape(visible(value)))
    console.print()
    console.print(_text(block.title, style="bold"))
    console.print(table)


def _print_listing(block: Listing, console: Console, max_items: int) -> None:
    console.print()
    console.print(_text(block.title, style="bold"))
    if block.note:
        console.print(_text(block.note, style="dim"))
    for head, pairs in block.items[:max_items]:
        console.print(_text(f"  {head}"), soft_wrap=True)
        for name, value in pairs:
            console.print(_text(f"      {name}: {value}", style="dim"), soft_wrap=True)
    if len(block.items) > max_items:
        console.print(_text(f"  … and {len(block.items) - max_items} more", style="dim"))


def markdown(sheet: Sheet) -> str:
    """The sheet as GitHub's Markdown; drawings are left out."""
    parts = [f"# {_md(sheet.title)}", _md(sheet.headline)]
    parts += [f"> {_md(warning)}" for warning in sheet.warnings]
    parts += [text for block in sheet.blocks if (text := _block(block))]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Figure | Panels):
        return ""
    head = f"## {_md(block.title)}\n\n"
    if isinstance(block, Table):
        rules = ["---" if not i or i in block.prose else "---:" for i in range(len(block.columns))]
        lines = [f"| {' | '.join(map(_md, block.columns))} |", f"|{'|'.join(rules)}|"]
        lines += [f"| {' | '.join(map(_md_cell, row))} |" for row in block.rows]
        note = f"\n\n{_md(block.note)}" if block.note else ""
        return head + "\n".join(lines) + note
    if isinstance(block, Facts):
        return head + "\n".join(f"- {_md(name)}: {_md(value)}" for name, value in block.pairs)
    note = f"{_md(block.note)}\n\n" if block.note else ""
    items = [
        "\n".join([f"- {_md(title)}", *(f"  - {_md(name)}: {_md(value)}" for name, value in pairs)])
        for title, pairs in block.items
    ]
    return head + note + "\n".join(items)


def _md_cell(cell: Cell) -> str:
    return _md(f"{cell.text} [{cell.interval}]" if cell.interval else cell.text)


_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>#|~"} | {"\n": " ", "\r": " "})


def _md(text: str) -> str:
    """Text with nothing in it that Markdown would read: answers and questions are not ours."""
    return visible(text).translate(_SPECIAL)
