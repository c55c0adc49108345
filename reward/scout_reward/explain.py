"""`scout reward explain FILE.jsonl`: the parts of every score, for traces and for published transcripts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import Trace
from scout_reward.settings import RewardSettings

if TYPE_CHECKING:
    from scout_reward.score import Score


class _Transcript(msgspec.Struct):
    """A published rollout: everything after the prompt as one string."""

    question: str
    golden: list[str]
    full_output: str


class _Scored(msgspec.Struct):
    """One line of the file, scored; ``score`` is None where an outage took the reward away."""

    line: int
    question: str
    golden: list[str]
    score: Score | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `scout reward explain`."""
    parser.add_argument("file", help="JSON lines: traces, or transcripts with question, golden, full_output")
    parser.add_argument("--limit", type=int, help="read at most this many lines")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")


def _read(path: str) -> Iterator[tuple[int, Any]]:
    source = Path(path)
    if not source.is_file():
        raise UserError(path, "no such file", "give the path of a JSON lines file")
    count = 0
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                try:
                    yield number, msgspec.json.decode(line)
                except (msgspec.DecodeError, ValueError, RecursionError) as error:
                    raise UserError(
                        f"{path}: line {number}", error, "every line must be one JSON value"
                    ) from error
                count += 1
    if not count:
        raise UserError(path, "no lines", "the file is empty")


def _score_line(item: Any, where: str, number: int, settings: RewardSettings, dialect_name: str) -> _Scored:
    from scout_reward.reading import read_spans
    from scout_reward.score import score, score_trace
    from scout_reward.transcripts import split_transcript

    try:
        if isinstance(item, dict) and "spans" in item:
            trace = msgspec.convert(item, Trace)
            return _Scored(number, trace.question, trace.golden_answers, score_trace(trace, settings))
        row = msgspec.convert(item, _Transcript)
    except msgspec.ValidationError as error:
        remedy = "must be a trace, or an object with question, golden (list) and full_output"
        raise UserError(where, error, remedy) from error
    dialect = get_dialect(dialect_name)
    reading = read_spans(split_transcript(row.full_output, dialect))
    try:
        return _Scored(number, row.question, row.golden, score(reading, row.golden, dialect, settings))
    except UserError as error:
        raise UserError(f"{where}: {error.field}", error.value, error.remedy) from error


def explain(args: argparse.Namespace, settings: RewardSettings) -> int:
    """Score every line of a file and show the parts.

    Raises:
        UserError: the file, a line of it, or a setting that the lines cannot be scored with.
    """
    if args.limit is not None and args.limit < 1:
        raise UserError("--limit", args.limit, "must be at least 1")
    scored: list[_Scored] = []
    for number, item in _read(args.file):
        scored.append(_score_line(item, f"{args.file}: line {number}", number, settings, args.dialect))
        if len(scored) == args.limit:
            break
    if args.json:
        for row in scored:
            parts = row.score.as_dict() if row.score else None
            record = {"line": row.line, "question": row.question, "golden": row.golden, "score": parts}
            sys.stdout.write(msgspec.json.encode(record).decode() + "\n")
        return 0
    _print_table(scored, args.file)
    return 0


def _print_table(scored: list[_Scored], title: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    table = Table(title=Text(Path(title).name), header_style="bold", box=box.SIMPLE_HEAD)
    rewarded = [row.score for row in scored if row.score is not None]
    terms = list(rewarded[0].shaping) if rewarded else []
    numbers = ["line", "total", "em", "f1", "fmt", "n", "s"]
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("answer", "golden", "why"):
        table.add_column(name, overflow="fold")
    for row in scored:
        golden = Text(_short(" | ".join(row.golden)))
        if row.score is None:
            dashes = ["-"] * (len(numbers) - 1)
            table.add_row(str(row.line), *dashes, "", golden, Text("outage: no reward"), style="yellow")
            continue
        s = row.score
        style = "green" if s.em else ("" if s.format else "red")
        shown = [
            f"{s.total:.3f}",
            f"{s.em:.0f}",
            f"{s.f1:.2f}",
            f"{s.format:.0f}",
            str(s.n_answers),
            str(s.n_searches),
        ]
        why = "; ".join(
            [s.why, *(f"{name.replace('_', ' ')} {value:.2f}" for name, value in s.shaping.items() if value)]
        )
        table.add_row(str(row.line), *shown, Text(_short(s.answer)), golden, Text(why), style=style)
    console.print(table)
    print("fmt: an answer was closed; n: answers closed; s: searches")

    lost = len(scored) - len(rewarded)
    n = max(len(rewarded), 1)
    means = {
        "total": sum(s.total for s in rewarded) / n,
        "em": sum(s.em for s in rewarded) / n,
        "f1": sum(s.f1 for s in rewarded) / n,
        "format": sum(s.format for s in rewarded) / n,
        **{name: sum(s.shaping[name] for s in rewarded) / n for name in terms},
    }
    told = "  ".join(f"{name} {value:.3f}" for name, value in means.items())
    print(
        f"mean of {len(rewarded)}:  {told}" + (f"   ({lost} ended by an outage: no reward)" if lost else "")
    )


def _short(text: str, width: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"
