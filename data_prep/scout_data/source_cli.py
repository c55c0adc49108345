"""`scout data fetch` brings published files here; `scout data make` goes from source to training file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError


def add(commands: Any) -> None:
    """The two commands' arguments."""
    fetch = commands.add_parser(
        "fetch", help="a published data set, resumable and checked (HF_ENDPOINT: a mirror)"
    )
    fetch.add_argument("name", nargs="?", help="which; without it they are listed")
    fetch.add_argument("--out", type=Path, default=Path("runs/sources"), help="folder (default runs/sources)")
    fetch.add_argument(
        "--revision", default="main", help="of the hub's repository: a branch or commit (default main)"
    )
    fetch.add_argument("--sha256", default="", help="refuse any other file")
    fetch.set_defaults(run=_fetch)

    make = commands.add_parser("make", help="sources -> rows -> split -> mix -> audit, in one go")
    make.add_argument(
        "--source",
        action="append",
        required=True,
        metavar="FILE|NAME",
        help="a file, or a name of `fetch`; repeatable",
    )
    make.add_argument("--out", type=Path, required=True, help="folder for train.parquet and val.parquet")
    make.add_argument("--prompt", default="system_user", help="prompt file (default system_user)")
    make.add_argument("--val-share", type=float, default=0.1, help="share for validation (default 0.1)")
    make.add_argument(
        "--against", action="append", default=[], help="evaluation file; its questions are left out"
    )
    make.add_argument(
        "--repeat", action="append", default=[], metavar="GROUP=N", help="over-sample, e.g. long_chain=3"
    )
    make.add_argument("--seed", type=int, default=0, help="of split and order (default 0)")
    make.add_argument("--tokenizer", help="model folder, for prompt lengths by its chat template")
    make.add_argument(
        "--max-prompt-tokens", type=int, default=1024, help="data.max_prompt_length (default 1024)"
    )
    make.set_defaults(run=_make)


def bring(name: str, out: Path, revision: str = "main", sha256: str = "") -> Path:
    """`download.fetch` with a progress bar."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    from scout_data.download import fetch

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=None)
        path, facts = fetch(
            name, out, revision, sha256, lambda done, size: progress.update(task, completed=done, total=size)
        )
    print(
        f"{path}: {facts['bytes']:,} bytes, sha256 {facts['sha256']}, "
        f"checked against {facts['checked_against']}"
    )
    return path


def _fetch(args: argparse.Namespace) -> int:
    from scout_data.download import SOURCES

    if not args.name:
        for name, source in SOURCES.items():
            print(f"{name:<24} {source.about}")
        return 0
    bring(args.name, args.out, args.revision, args.sha256)
    return 0


def _make(args: argparse.Namespace) -> int:
    from rich.console import Console

    from scout_data.download import SOURCES
    from scout_data.findings import AuditSettings, Verdict
    from scout_data.manifest import write_manifest
    from scout_data.mix import MixSettings
    from scout_data.mix_cli import pairs, show_audit
    from scout_data.prepare import audit_file, counts_line, mix_files, split_files
    from scout_data.readers import detect_format, load_rows
    from scout_data.rows import write_rows

    console = Console(stderr=True)
    paths = []
    for source in args.source:
        if not Path(source).exists() and source not in SOURCES:
            raise UserError("--source", source, f"no such file, and no name of {', '.join(SOURCES)}")
        paths.append(Path(source) if Path(source).exists() else bring(source, args.out / "sources"))
    stages = args.out / "stages"
    inputs = []
    for number, path in enumerate(paths):
        name = detect_format(path)
        with console.status(f"reading {path} as {name}"):
            rows = load_rows(path, name, args.prompt, "train")
            for row in rows if len(paths) > 1 else ():
                row.id = f"{number}-{row.id}"  # two files may both have a row 0
            target = stages / f"{number}-{path.stem}.parquet"
            write_rows(target, rows)
            write_manifest(target, rows, args.prompt, [(name, path)], None, {"split": "train"})
        print(f"{path}: {len(rows):,} questions ({name})")
        inputs.append(target)
    with console.status("splitting"):
        parts = split_files(
            inputs, stages, args.val_share, args.seed, against=args.against, on_overlap="drop"
        )
    print(
        f"split: {parts['train']:,} train, {parts['val']:,} validation, "
        f"{parts['dropped']:,} left out (--against)"
    )
    with console.status("mixing"):
        repeat = {name: int(n) for name, n in pairs("--repeat", args.repeat).items()}
        counts = mix_files(
            [stages / "train.parquet"], args.out / "train.parquet", MixSettings(repeat=repeat, seed=args.seed)
        )
        mix_files([stages / "val.parquet"], args.out / "val.parquet", MixSettings(seed=args.seed))
    print(f"train: {counts_line(counts)}")
    settings = AuditSettings(tokenizer=args.tokenizer, max_prompt_tokens=args.max_prompt_tokens)
    with console.status("auditing"):
        found = audit_file(args.out / "train.parquet", settings)
    show_audit(found, args.out / "train.parquet")
    return 2 if found.verdict is Verdict.REFUSE else 0
