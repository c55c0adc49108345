"""``scout report``: draw the report of a run and print its table."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def parser() -> argparse.ArgumentParser:
    """The command line, importing nothing heavy."""
    top = argparse.ArgumentParser(
        prog="scout report", description="Draw the report of a run: one HTML file, and its table here."
    )
    top.add_argument(
        "--run", type=Path, required=True, metavar="DIR", help="folder of the run, e.g. runs/quickstart"
    )
    top.add_argument("--out", type=Path, metavar="FILE", help="where to write (default: DIR/report.html)")
    top.add_argument("--note", default="", help="a line to show on top of the page")
    return top


def main(argv: list[str]) -> int:
    """Write the page, print the table."""
    args = parser().parse_args(argv)
    from rich.console import Console

    from scout_eval.report_data import load_run
    from scout_eval.report_html import page
    from scout_eval.report_picks import pick_trajectories
    from scout_eval.report_terminal import print_report

    run = load_run(args.run)
    out: Path = args.out or args.run / "report.html"
    write_text(out, page(run, pick_trajectories(run), args.note))
    print_report(run, Console(highlight=False))
    print(f"report: {out}")
    return 0


def write_text(path: Path, text: str) -> None:
    """Write a file, all or nothing.

    Raises:
        UserError: the folder is missing or not writable.
    """
    from scout_protocol.errors import UserError

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8", errors="replace")
        temporary.replace(path)
    except OSError as error:
        raise UserError("out", path, f"{error.strerror}: choose a writable path with free space") from error
    finally:
        temporary.unlink(missing_ok=True)
