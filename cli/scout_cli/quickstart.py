"""`scout quickstart`: the whole job on a CPU, in order, resumable, with the code that larger machines run."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from scout_cli.machine import probe, require
from scout_cli.pipeline import Pipeline, Stage, StageFailedError, tool_server
from scout_cli.stages import (
    DAPO_LR,
    DAPO_STEPS,
    GRPO_LR,
    GRPO_STEPS,
    SFT_STEPS,
    TOPK,
    evaluate_stage,
    prepare_stages,
    train_stage,
    warm_up_stages,
)
from scout_protocol.errors import UserError

MIN_DISK_FREE_GIB = 1.0  # a finished run holds 0.2; the packages are there already


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scout quickstart",
        description="World, index, demonstrations, warm-up, GRPO, DAPO, evaluations, report. Killed at any "
        "moment, the same command goes on where it stopped.",
    )
    parser.add_argument(
        "--run", type=Path, default=Path("runs/quickstart"), help="folder (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of world, model and sampling (default 0)")
    parser.add_argument("--sft-steps", type=int, default=SFT_STEPS, help="default %(default)s")
    parser.add_argument("--grpo-steps", type=int, default=GRPO_STEPS, help="default %(default)s")
    parser.add_argument("--dapo-steps", type=int, default=DAPO_STEPS, help="default %(default)s")
    return parser


def learning_stages(run: Path, tools: str, args: argparse.Namespace) -> list[Stage]:
    """Demonstrations, warm-up, GRPO, DAPO, with an evaluation before and after each, and the report."""
    base, sft, grpo, dapo = run / "base", run / "sft/hf", run / "grpo/hf", run / "dapo/hf"
    return [
        evaluate_stage(run, tools, "base", base, "before SFT"),
        *warm_up_stages(run, tools, args.sft_steps, args.seed),
        evaluate_stage(run, tools, "sft", sft, "after SFT"),
        train_stage(run, tools, "grpo", sft, args.grpo_steps, args.seed, GRPO_LR, 110),
        evaluate_stage(run, tools, "grpo", grpo, "after GRPO"),
        train_stage(run, tools, "dapo", grpo, args.dapo_steps, args.seed, DAPO_LR, 190),
        evaluate_stage(run, tools, "dapo", dapo, "after DAPO"),
        Stage("report", "report", [("report", "--run", run)], 2),
    ]


def main(argv: list[str]) -> int:
    """Run the whole job; returns the exit status of the first command that fails.

    Raises:
        UserError: the machine is too small, or the folder is in use or holds another run.
    """
    args = _parser().parse_args(argv)
    run: Path = args.run
    settings: dict[str, Any] = {k: v for k, v in vars(args).items() if k != "run"}
    pipeline = Pipeline(run, settings)
    require(probe(run), min_disk_free_gib=MIN_DISK_FREE_GIB)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        with pipeline.opened(), contextlib.ExitStack() as stack:
            first = prepare_stages(run, args.seed)
            every = [*first, *learning_stages(run, "", args)]
            pipeline.run(every, stop=len(first))
            done = pipeline.stamps()
            if not all(stage.name in done for stage in every):
                tools = stack.enter_context(tool_server(run / "index", TOPK, run / "tools.log"))
                every = [*first, *learning_stages(run, tools, args)]
            pipeline.run(every, start=len(first))
    except StageFailedError as failed:
        print(
            f"scout quickstart: stage {failed.stage} failed (exit code {failed.code}); "
            "mend the cause named above and run the same command: it goes on from here",
            file=sys.stderr,
        )
        return failed.code if failed.code > 0 else 128 - failed.code
    except OSError as error:
        raise UserError("--run", run, f"{error}: free some space or choose another folder") from error
    print(f"report: {(run / 'report.html').resolve()}")
    return 0
