"""`scout data rows` makes RL rows of a published file; `scout data show` prints rows for reading."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.records import RLRow

FORMATS = ("auto", "hotpotqa", "hotpot-contexts", "search-r1", "nq-open", "qa", "long-chain")


def add(commands: Any) -> None:
    """The two commands' arguments."""
    rows = commands.add_parser("rows", help="turn a published question file into RL rows")
    rows.add_argument(
        "--input",
        required=True,
        help="HotpotQA json/jsonl, Search-R1 parquet, or JSON lines with question and answers",
    )
    rows.add_argument("--format", default="auto", choices=FORMATS, help="shape of the input (default: auto)")
    rows.add_argument(
        "--prompt", default="search_r1", help="prompt file to build prompts from; keep: the parquet's own"
    )
    rows.add_argument("--split", default="dev", help="name stored in extra_info.split (default: dev)")
    rows.add_argument("--limit", type=int, help="keep at most this many rows")
    rows.add_argument("--seed", type=int, help="shuffle with this seed before --limit (default: file order)")
    rows.add_argument(
        "--plans",
        action="store_true",
        help="add extra_info.oracle: one search per supporting title; rows without titles are dropped",
    )
    rows.add_argument("--data-source", help="name of the source (default: the format's)")
    rows.add_argument("--output", required=True, help="parquet to write; a manifest is written beside it")
    rows.set_defaults(run=_rows)
    show = commands.add_parser("show", help="print rows of a parquet and its manifest")
    show.add_argument("file")
    show.add_argument("--start", type=int, default=0, help="first row, from 0")
    show.add_argument("--count", type=int, default=3, help="how many rows")
    show.set_defaults(run=_show)


def with_plans(rows: Sequence[RLRow]) -> list[RLRow]:
    """The rows that name supporting titles, each with the plan of searching them in order.

    Raises:
        UserError: no row names any.
    """
    planned = []
    for row in rows:
        titles = list(dict.fromkeys(row.extra_info.get("supporting_titles") or ()))
        if titles:
            steps = [{"think": f"I need the page about {title}.", "query": title} for title in titles]
            planned.append(msgspec.structs.replace(row, extra_info={**row.extra_info, "oracle": steps}))
    if not planned:
        raise UserError("--plans", f"{len(rows)} rows", "none names supporting titles: use a HotpotQA file")
    return planned


def _rows(args: argparse.Namespace) -> int:
    from rich.console import Console

    from scout_data.columns import read_table
    from scout_data.manifest import manifest_path, write_manifest, write_table_manifest
    from scout_data.readers import KEEP, detect_format, load_rows
    from scout_data.rows import write_rows

    if args.limit is not None and args.limit < 1:
        raise UserError("--limit", args.limit, "must be at least 1")
    if Path(args.output).suffix != ".parquet":
        raise UserError("--output", args.output, "must end in .parquet")
    console = Console(stderr=True)
    name = detect_format(args.input) if args.format == "auto" else args.format
    with console.status(f"reading {args.input} as {name}"):
        rows = load_rows(args.input, name, args.prompt, args.split, args.data_source)
        total = len(rows)
        if args.seed is not None:
            random.Random(args.seed).shuffle(rows)
        if args.plans:
            rows = with_plans(rows)
        rows = rows[: args.limit]
        write_rows(args.output, rows)
        settings = {"split": args.split, "limit": args.limit, "plans": args.plans}
        sources = [(name, args.input)]
        if args.prompt == KEEP:
            settings |= {"prompt": KEEP}
            write_table_manifest(args.output, read_table(args.output), sources, args.seed, settings)
        else:
            write_manifest(args.output, rows, args.prompt, sources, args.seed, settings)
    print(f"{len(rows)} of {total} questions ({name}) -> {args.output}, {manifest_path(args.output)}")
    return 0


def _show(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.json import JSON
    from rich.markup import escape
    from rich.text import Text

    from scout_data.manifest import manifest_path
    from scout_data.rows import read_rows

    rows = read_rows(args.file)
    if not 0 <= args.start < len(rows):
        raise UserError(
            "--start", args.start, f"must be at least 0 and below {len(rows)}, the number of rows"
        )
    console = Console()
    for row in rows[args.start : args.start + max(args.count, 0)]:
        console.rule(escape(row.id))
        console.print(Text(f"question  {row.question}", style="bold"))
        console.print(Text(f"golden    {row.golden_answers}"))
        console.print(Text(f"extra     {row.extra_info}"))
        for message in row.prompt:
            console.print(Text(f"{message['role']:<9} {message['content']}", style="dim"))
    manifest = manifest_path(args.file)
    if manifest.is_file():
        console.rule("manifest")
        console.print(JSON(manifest.read_text(encoding="utf-8")))
    else:
        console.print(Text(f"no manifest beside it ({manifest.name})", style="yellow"))
    print(f"{len(rows)} rows")
    return 0
