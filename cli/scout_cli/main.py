"""`scout COMMAND …`: finds the room that owns the command and hands over. Nothing heavy is imported here."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

from scout_protocol.errors import UserError

# command -> (module with `main(argv) -> int`, one line of help)
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("scout_tools.serve", "run the tool server"),
    "index": ("scout_tools.index_cli", "build, inspect and evaluate a BM25 index"),
    "tools": ("scout_tools.tools_cli", "ask a running tool server, or put it under load"),
    "cache": ("scout_tools.cache_cli", "look into the search cache, take it elsewhere"),
    "world": ("scout_data.world_cli", "make the made-up world: documents, questions, rows"),
    "data": ("scout_data.cli", "RL rows: fetch, make, split, mix, audit, plan"),
    "reward": ("scout_reward.cli", "score trajectories and show the parts of the score"),
    "sft": ("scout_sft.cli", "demonstrations, the tiny model, and the warm-up"),
    "demos": ("scout_cli.demos", "demonstrations from a HotpotQA file, with a tool server of its own"),
    "explain": ("scout_train.explain", "what a recipe changes in verl, and why"),
    "plan": ("scout_train.plan.cli", "memory by part and time of a run, before it starts"),
    "preflight": ("scout_train.preflight.cli", "check what a training run needs; `scout train` does it too"),
    "train": ("scout_train.launch", "compose recipes and train with verl"),
    "eval": ("scout_eval.cli", "evaluate a policy through the tool server"),
    "report": ("scout_eval.report_cli", "draw the report of a run"),
    "view": ("scout_diagnosis.view_cli", "read trajectories, coloured by who wrote what"),
    "quickstart": ("scout_cli.quickstart", "the whole job on a CPU, resumable"),
    "compare-algos": ("scout_cli.compare_algos", "every algorithm from one warm-up, several seeds"),
    "real": ("scout_cli.real", "the whole path on real HotpotQA questions"),
    "doctor": ("scout_cli.doctor", "say what this machine has and what is missing"),
}

# Errors of the machine, not of Scout: one line is all that helps. Any other OSError shows its traceback.
_MACHINE_ERRORS = {
    errno.ENOSPC: "free some disk space, then run it again",
    errno.EDQUOT: "free some disk space, then run it again",
    errno.EROFS: "choose a path that can be written",
    errno.EACCES: "check the permissions, or choose another path",
    errno.ENOMEM: "close other programs, then run it again",
}


def usage() -> str:
    """The help text: one line per command."""
    lines = ["usage: scout COMMAND [options]     (scout COMMAND --help tells more)", ""]
    lines += [f"  {name:<14} {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(lines)


@contextlib.contextmanager
def _usage_errors_as_one_line() -> Iterator[None]:
    """argparse prints the whole usage before what is wrong; `--help` is where that belongs."""

    def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        raise UserError("arguments", message, f"`{parser.prog} --help` lists them")

    original = argparse.ArgumentParser.error
    argparse.ArgumentParser.error = refuse  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        argparse.ArgumentParser.error = original  # type: ignore[method-assign]


def _dispatch(args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0
    if args[0] not in COMMANDS:
        raise UserError("command", repr(args[0]), f"choose one of {', '.join(COMMANDS)}")
    with _usage_errors_as_one_line():
        status = int(importlib.import_module(COMMANDS[args[0]][0]).main(args[1:]))
    sys.stdout.flush()  # here, so that a reader who went away is noticed inside the try below
    return status


def main(argv: list[str] | None = None) -> int:
    """Run one command; a `UserError` becomes one line on stderr and exit status 2."""
    args = sys.argv[1:] if argv is None else argv
    name = f"scout {args[0]}" if args and args[0] in COMMANDS else "scout"
    try:
        return _dispatch(args)
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0].startswith("scout_"):
            raise
        print(f"{name}: missing module {error.name}: run `make setup` in the checkout", file=sys.stderr)
        return 2
    except BrokenPipeError:
        # the reader of our output (head, less) went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in _MACHINE_ERRORS:
            raise
        where = error.filename or "the machine"
        told = UserError(str(where), error.strerror or "failed", _MACHINE_ERRORS[error.errno])
        print(f"{name}: {told}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
