"""`scout compare-algos`: every algorithm from the same warm-up, on the made-up world, for several seeds."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from scout_cli.machine import probe, require
from scout_cli.pipeline import Pipeline, Stage, StageFailedError, scout, tool_server
from scout_cli.stages import (
    GRPO_LR,
    SFT_STEPS,
    TOPK,
    evaluate_stage,
    prepare_stages,
    train_stage,
    warm_up_stages,
)
from scout_protocol.errors import UserError

ALGOS = ("grpo", "dr_grpo", "dapo", "dapo_dr_grpo")
STEPS = 30
MIN_DISK_FREE_GIB = 2.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scout compare-algos",
        description="One warm-up a seed, then every algorithm from it: the same questions, steps, learning "
        "rate. A table, curves, algos.html at the end. Killed at any moment, the same command goes on.",
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("runs/compare"), help="folder (default %(default)s)")
    add("--algos", nargs="+", default=list(ALGOS), metavar="ALGO", help=f"default {' '.join(ALGOS)}")
    add("--seeds", nargs="+", type=int, default=[0, 1, 2], metavar="N", help="default 0 1 2")
    add("--steps", type=int, default=STEPS, help="updates of each algorithm (default %(default)s)")
    add("--sft-steps", type=int, default=SFT_STEPS, help="of the warm-up (default %(default)s)")
    add("--lr", type=float, default=GRPO_LR, help="learning rate of all (default %(default)g)")
    return parser


def stages(run: Path, tools: str, seed: int, args: argparse.Namespace) -> list[Stage]:
    """What needs the tool server: the warm-up, then training and evaluation of each algorithm."""
    sft = run / "sft/hf"
    found = [
        *warm_up_stages(run, tools, args.sft_steps, seed),
        evaluate_stage(run, tools, "sft", sft, "after SFT", ("none",)),
    ]
    for algo in args.algos:
        found.append(train_stage(run, tools, algo, sft, args.steps, seed, args.lr, 4.0 * args.steps))
        found.append(evaluate_stage(run, tools, algo, run / algo / "hf", f"after {algo}", ("none",)))
    return found


def _one_seed(run: Path, seed: int, args: argparse.Namespace) -> None:
    # Not the algorithms: another one may be added to a folder later.
    settings: dict[str, Any] = {
        "seed": seed,
        "steps": args.steps,
        "sft_steps": args.sft_steps,
        "lr": args.lr,
    }
    pipeline = Pipeline(run, settings)
    with pipeline.opened(), contextlib.ExitStack() as stack:
        first = prepare_stages(run, seed)
        every = [*first, *stages(run, "", seed, args)]
        pipeline.run(every, stop=len(first))
        done = pipeline.stamps()
        if all(stage.name in done for stage in every):
            return
        tools = stack.enter_context(tool_server(run / "index", TOPK, run / "tools.log"))
        pipeline.run([*first, *stages(run, tools, seed, args)], start=len(first))


def main(argv: list[str]) -> int:
    """Run what is missing, then print the table; returns the exit status of the first command that fails.

    Raises:
        UserError: the machine is too small, or a folder is in use or holds another comparison.
    """
    args = _parser().parse_args(argv)
    if len(set(args.seeds)) < len(args.seeds):
        raise UserError("--seeds", args.seeds, "name each seed once")
    require(probe(args.out), min_disk_free_gib=MIN_DISK_FREE_GIB)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    for seed in args.seeds:
        print(f"== seed {seed}", flush=True)
        try:
            _one_seed(args.out / f"seed{seed}", seed, args)
        except StageFailedError as failed:
            print(
                f"scout compare-algos: stage {failed.stage} of seed {seed} failed (exit code {failed.code}); "
                "mend the cause named above and run the same command: it goes on from here",
                file=sys.stderr,
            )
            return failed.code if failed.code > 0 else 128 - failed.code
    return scout(("eval", "algos", args.out))[0]
