"""`scout data`: parsing of arguments; what works is imported when it is needed."""

from __future__ import annotations

import argparse

from scout_data import mix_cli, rows_cli, source_cli

_STEPS = (rows_cli, source_cli, mix_cli)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scout data", description="Questions as RL rows (parquet).")
    commands = parser.add_subparsers(dest="command", required=True)
    for step in _STEPS:
        step.add(commands)
    return parser


def main(argv: list[str]) -> int:
    """Entry point of `scout data`; returns the exit status."""
    args = _parser().parse_args(argv)
    return int(args.run(args))
