"""`scout data split | mix | audit | plan-epochs`: from rows to a file that a run can be given."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scout_protocol.errors import UserError

if TYPE_CHECKING:
    from scout_data.findings import Audit

_ORDERS = ("shuffle", "interleave", "batches", "curriculum")
_SHOW = {"ok": "green", "warn": "yellow", "refuse": "bold red"}


def add(commands: Any) -> None:
    """The four commands' arguments."""
    split = commands.add_parser("split", help="train and validation, no question in both")
    split.add_argument("--input", action="append", required=True, help="parquet of RL rows; repeatable")
    split.add_argument("--out", type=Path, required=True, help="folder for train.parquet and val.parquet")
    split.add_argument("--val-share", type=float, default=0.1, help="share for validation (default 0.1)")
    split.add_argument("--val-rows", type=int, help="so many rows instead")
    split.add_argument("--seed", type=int, default=0, help="of the draw (default 0)")
    split.add_argument(
        "--against",
        action="append",
        default=[],
        metavar="FILE",
        help="evaluation file to compare questions with",
    )
    split.add_argument(
        "--on-overlap",
        choices=("refuse", "drop", "keep"),
        default="refuse",
        help="if it has the same (default refuse)",
    )
    split.set_defaults(run=_split)

    mix = commands.add_parser("mix", help="choose rows and their order")
    mix.add_argument("--input", action="append", required=True, help="parquet of RL rows; repeatable")
    mix.add_argument("--output", required=True, help="parquet to write; a manifest is written beside it")
    mix.add_argument(
        "--by",
        default="data_source",
        help="what a group is: data_source, type, level, hops, … (default data_source)",
    )
    mix.add_argument("--rows", type=int, help="how many (default: all that the shares allow)")
    mix.add_argument(
        "--ratio",
        action="append",
        default=[],
        metavar="GROUP=X",
        help="share of a group; name every one, 0 leaves it out",
    )
    mix.add_argument(
        "--temperature", type=float, help="shares by n ** (1 / T): 1 as they are, large T evens them out"
    )
    mix.add_argument(
        "--repeat", action="append", default=[], metavar="GROUP=N", help="over-sample: each row N times"
    )
    mix.add_argument(
        "--order",
        choices=_ORDERS,
        default="shuffle",
        help="shuffle; interleave: any stretch has the mix; batches: every batch has; curriculum: easy first",
    )
    mix.add_argument("--batch", type=int, default=8, help="questions a step, for --order batches (default 8)")
    mix.add_argument(
        "--curriculum", default="hops", help="key to order by, for --order curriculum (default hops)"
    )
    mix.add_argument("--seed", type=int, default=0, help="of choice and order (default 0)")
    mix.set_defaults(run=_mix)

    audit = commands.add_parser(
        "audit", help="what is wrong with a file; exit status 2 if it should not be trained on"
    )
    audit.add_argument("file", help="parquet of RL rows; X.audit.json and X.audit.html are written beside it")
    audit.add_argument("--tokenizer", help="model folder or hub name: prompt lengths by its chat template")
    audit.add_argument("--steps", type=int, default=200, help="first steps to look at (default 200)")
    audit.add_argument("--batch", type=int, default=8, help="questions a step (default 8)")
    audit.add_argument(
        "--max-prompt-tokens", type=int, default=1024, help="data.max_prompt_length (default 1024)"
    )
    audit.add_argument(
        "--max-answer-words", type=int, default=20, help="longer golden answers are counted (default 20)"
    )
    audit.add_argument(
        "--max-question-chars", type=int, default=10_000, help="longer questions are counted (default 10000)"
    )
    audit.add_argument(
        "--warn-share", type=float, default=0.001, help="and from which it is warned of (default 0.001)"
    )
    audit.add_argument(
        "--refuse-share",
        type=float,
        default=0.01,
        help="share of bad rows from which a file is refused (default 0.01)",
    )
    audit.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="FINDING",
        help="its refusal becomes a warning; repeatable",
    )
    audit.set_defaults(run=_audit)

    plan = commands.add_parser("plan-epochs", help="steps of a run, and how often each question is seen")
    plan.add_argument("--input", required=True, help="parquet of RL rows")
    plan.add_argument("--rows", type=int, help="only the first so many")
    plan.add_argument("--epochs", type=int, default=2, help="(default 2)")
    plan.add_argument("--batch", type=int, default=8, help="questions a step (default 8)")
    plan.add_argument("--n", type=int, default=1, help="rollouts of a question in a step (default 1)")
    plan.add_argument("--by", default="data_source", help="groups of the table (default data_source)")
    plan.set_defaults(run=_plan)


def pairs(option: str, given: Sequence[str]) -> dict[str, float]:
    """``["nq=1", "hotpotqa=2"]`` as a dict.

    Raises:
        UserError: no ``=``, no number, or a name twice.
    """
    found: dict[str, float] = {}
    for text in ",".join(given).split(",") if given else ():
        name, _, number = text.rpartition("=")
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if not name or name in found or value != value:
            raise UserError(option, text, "give each group once, as GROUP=NUMBER")
        found[name] = value
    return found


def _split(args: argparse.Namespace) -> int:
    from rich.console import Console

    from scout_data.prepare import split_files

    with Console(stderr=True).status("splitting"):
        parts = split_files(
            args.input, args.out, args.val_share, args.seed, args.val_rows, args.against, args.on_overlap
        )
    print(
        f"{args.out}: {parts['train']:,} rows in train.parquet, {parts['val']:,} in val.parquet; "
        f"{parts['questions']:,} different questions, none in both"
    )
    if args.against:
        left = f", {parts['dropped']:,} rows left out" if parts["dropped"] else ""
        print(f"overlap with {', '.join(args.against)}: {parts['overlap']:,} rows{left}")
    return 0


def _mix(args: argparse.Namespace) -> int:
    from rich.console import Console

    from scout_data.mix import MixSettings
    from scout_data.prepare import counts_line, mix_files, require_parquet

    output = require_parquet("--output", args.output)
    repeat = pairs("--repeat", args.repeat)
    for name, times in repeat.items():
        if times != int(times):
            raise UserError("--repeat", f"{name}={times}", "must be a whole number")
    settings = MixSettings(
        by=args.by,
        rows=args.rows,
        ratio=pairs("--ratio", args.ratio),
        temperature=args.temperature,
        repeat={name: int(times) for name, times in repeat.items()},
        order=args.order,
        batch=args.batch,
        curriculum=args.curriculum,
        seed=args.seed,
    )
    with Console(stderr=True).status("mixing"):
        counts = mix_files(args.input, output, settings)
    print(f"{output}: {sum(counts.values()):,} rows, {args.order}; {counts_line(counts)}")
    return 0


def _audit(args: argparse.Namespace) -> int:
    from rich.console import Console

    from scout_data.findings import AuditSettings, Verdict
    from scout_data.prepare import audit_file, require_parquet

    require_parquet("file", args.file)
    names = [f.name for f in dataclasses.fields(AuditSettings)]
    settings = AuditSettings(
        **{name: getattr(args, name) for name in names if name != "allow"}, allow=tuple(args.allow)
    )
    with Console(stderr=True).status(f"auditing {args.file}"):
        found = audit_file(args.file, settings)
    show_audit(found, Path(args.file))
    return 2 if found.verdict is Verdict.REFUSE else 0


def show_audit(found: Audit, path: Path) -> None:
    """The findings in the terminal, the worst last, where it is read first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rank = list(_SHOW)
    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in sorted(found.findings, key=lambda f: rank.index(f.verdict)):
        said = f"{finding.said}\n→ {finding.remedy}" if finding.remedy else finding.said
        table.add_row(
            Text(finding.verdict.value, style=_SHOW[finding.verdict]), Text(finding.name), Text(said)
        )
    for text in found.not_checked:
        table.add_row(Text("-", style="dim"), Text("not checked"), Text(text))
    Console().print(table)
    print(f"{path}: {found.verdict.value} ({found.rows:,} rows); page: {path.with_suffix('.audit.html')}")


def _plan(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from scout_data.columns import groups, read_table
    from scout_data.epochs import plan_epochs

    if args.rows is not None and args.rows < 1:
        raise UserError("--rows", args.rows, "must be at least 1")
    table = read_table(args.input)
    if args.rows is not None:
        if args.rows > table.num_rows:
            raise UserError("--rows", args.rows, f"the file has {table.num_rows}")
        table = table.slice(0, args.rows).combine_chunks()
    plan = plan_epochs(
        table.column("question").to_pylist(), groups(table, args.by), args.epochs, args.batch, args.n
    )
    print(
        f"{plan.rows:,} rows x {plan.epochs} epochs / batch {plan.batch} = {plan.steps:,} steps, "
        f"{plan.rollouts:,} trajectories"
    )
    if plan.dropped:
        print(
            f"a loader that drops the last batch, as verl's does: {plan.full_steps:,} steps; "
            f"{plan.dropped} rows of each epoch are not seen"
        )
    shown = Table(box=None, pad_edge=False)
    for name in (args.by, "rows", "share", "questions", "each seen (mean)", "most often"):
        shown.add_column(name, justify="left" if name == args.by else "right")
    for seen in plan.groups:
        shown.add_row(
            seen.group,
            f"{seen.rows:,}",
            f"{seen.share:.1%}",
            f"{seen.questions:,}",
            f"{seen.seen_mean:.2f}",
            f"{seen.seen_most}",
        )
    Console().print(shown)
    return 0
