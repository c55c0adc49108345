"""`scout demos`: demonstrations from a HotpotQA file, through a running tool server or one of its own.

The file's own paragraphs are indexed where no server is named, so that the command needs nothing else.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from scout_cli.pipeline import Command, Pipeline, Stage, StageFailedError, scout, tool_server
from scout_protocol.errors import UserError

# Shares of the questions; golden is a named strategy, kept small: it teaches queries that know the answer.
STRATEGIES = ("golden=0.3", "keywords=0.2", "bridge=0.5")
SEARCHES = "1-5"  # HotpotQA alone teaches to stop after two
TOPK = 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scout demos",
        description="Rows of a HotpotQA file, and demonstrations harvested through the tool server. Killed "
        "at any moment, the same command goes on. Options not listed here go to `scout sft harvest`.",
    )
    parser.add_argument("--hotpot", type=Path, required=True, help="HotpotQA file with paragraphs")
    parser.add_argument("--run", type=Path, default=Path("runs/demos"), help="folder (default %(default)s)")
    parser.add_argument(
        "--server",
        default="",
        help="a running tool server (default: one is started on the file's paragraphs)",
    )
    parser.add_argument(
        "--strategy", action="append", help=f"NAME[=SHARE], repeatable (default {' '.join(STRATEGIES)})"
    )
    parser.add_argument("--searches", default=SEARCHES, help="LOW-HIGH, spread (default %(default)s)")
    parser.add_argument("--prompt", default="search_r1", help="prompt file (default %(default)s)")
    return parser


def _stages(run: Path, hotpot: Path, prompt: str, with_index: bool) -> list[Stage]:
    rows: Command = ("data", "rows", "--input", hotpot, "--prompt", prompt, "--output", run / "rows.parquet")
    stages = [Stage("rows", "questions as rows", [rows], 3)]
    if with_index:
        index: Command = ("index", "build", hotpot, "--index", run / "index")
        stages.append(Stage("index", "index of the paragraphs", [index], 3))
    return stages


def main(argv: list[str]) -> int:
    """Make rows, an index if needed, and the demonstrations; the exit status of the first that fails.

    Raises:
        UserError: the file is missing, or the folder is in use or of another file.
    """
    args, others = _parser().parse_known_args(argv)
    run: Path = args.run
    if not args.hotpot.is_file():
        raise UserError("--hotpot", args.hotpot, "no such file: name a HotpotQA file")
    pipeline = Pipeline(run, {"hotpot": str(args.hotpot.resolve()), "prompt": args.prompt})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    shares = [word for share in args.strategy or STRATEGIES for word in ("--strategy", share)]

    def harvest(server: str) -> int:
        where: Command = ("--rows", run / "rows.parquet", "--server", server, "--out", run / "demos.parquet")
        return scout(("sft", "harvest", *where, *shares, "--searches", args.searches, *others))[0]

    try:
        with pipeline.opened():
            pipeline.run(_stages(run, args.hotpot, args.prompt, with_index=not args.server))
            if args.server:
                return harvest(args.server)
            with tool_server(run / "index", TOPK, run / "tools.log") as tools:
                return harvest(tools)
    except StageFailedError as failed:
        return failed.code if failed.code > 0 else 128 - failed.code
