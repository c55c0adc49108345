"""A sheet as one HTML file: no script, no request, readable in light and dark."""

from __future__ import annotations

from importlib import resources

from scout_eval.report_html import POLICY
from scout_eval.report_traces import safe
from scout_eval.sheet import Block, Cell, Facts, Figure, Listing, Panels, Sheet

MAX_ITEMS = 200  # of a listing


def sheet_page(sheet: Sheet) -> str:
    """The whole page."""
    css = (resources.files("scout_eval") / "report.css").read_text(encoding="utf-8")
    notes = "".join(f"<li>{safe(warning)}</li>" for warning in sheet.warnings)
    warnings = f'<div class="note"><ul>{notes}</ul></div>' if notes else ""
    body = (
        f'<h1>{safe(sheet.title)}</h1><p class="headline">{safe(sheet.headline)}</p>{warnings}'
        f"{''.join(map(_block, sheet.blocks))}"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{safe(sheet.title)}</title><style>\n{css}</style></head>\n<body><main>{body}</main></body></html>\n"
    )


def _block(block: Block) -> str:
    head = f"<h2>{safe(block.title)}</h2>"
    if isinstance(block, Figure):
        caption = f'<p class="soft">{safe(block.caption)}</p>' if block.caption else ""
        return f'{head}{caption}<figure class="card">{block.svg}</figure>'
    if isinstance(block, Panels):
        return head + _panels(block)
    if isinstance(block, Facts):
        pairs = "".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in block.pairs)
        return f'{head}<div class="card"><dl class="facts">{pairs}</dl></div>'
    note = f'<p class="soft">{safe(block.note)}</p>' if block.note else ""
    if isinstance(block, Listing):
        return f"{head}{note}{_listing(block)}"
    names = "".join(f"<th{_css(i in block.prose)}>{safe(name)}</th>" for i, name in enumerate(block.columns))
    rows = []
    for place, row in enumerate(block.rows, start=1):
        cells = "".join(_cell(cell, i in block.prose) for i, cell in enumerate(row))
        css = ' class="ruled"' if place == block.rule_after else ""
        rows.append(f"<tr{css}>{cells}</tr>")
    if not rows:
        return f"{head}{note}"
    table = f'<div class="card scroll"><table><tr>{names}</tr>{"".join(rows)}</table></div>'
    return f"{head}{note}{table}"


def _panels(block: Panels) -> str:
    note = f'<p class="soft">{safe(block.note)}</p>' if block.note else ""
    key = "".join(
        f'<span><i class="swatch {safe(css)}"></i>{safe(name)}</span>' for css, name in block.legend
    )
    figures = "".join(
        f'<figure class="card"><h3>{safe(figure.title)}</h3><figcaption>{safe(figure.caption)}</figcaption>'
        f"{figure.svg}</figure>"
        for figure in block.figures
    )
    return f'{note}<p class="key">{key}</p><div class="panels">{figures}</div>'


def _css(prose: bool) -> str:
    return ' class="prose"' if prose else ""


def _cell(cell: Cell, prose: bool) -> str:
    interval = f'<span class="ci">{safe(cell.interval)}</span>' if cell.interval else ""
    return f"<td{_css(prose)}>{safe(cell.text)}{interval}</td>"


def _listing(block: Listing) -> str:
    if not block.items:
        return '<p class="gone">none</p>'
    parts = []
    for title, pairs in block.items[:MAX_ITEMS]:
        rows = "".join(f"<dt>{safe(name)}</dt><dd>{safe(value)}</dd>" for name, value in pairs)
        parts.append(f'<li><p class="question">{safe(title)}</p><dl class="facts">{rows}</dl></li>')
    more = len(block.items) - MAX_ITEMS
    rest = f'<p class="soft">and {more} more, in the JSON</p>' if more > 0 else ""
    return f'<ul class="listing card">{"".join(parts)}</ul>{rest}'
