"""`scout compare-algos`: every algorithm from the same warm-up, on the made-up world, for several seeds."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
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
COLD_STEPS, COLD_GROUP, COLD_BATCH = 10, 4, 16
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
    add(
        "--cold",
        action="store_true",
        help="as well: DAPO and GRPO where few groups are mixed, under OUT/cold",
    )
    add("--cold-steps", type=int, default=COLD_STEPS, help="updates of DAPO there (default %(default)s)")
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


def _cold(run: Path, warm: Path, seed: int, args: argparse.Namespace) -> None:
    """DAPO on questions of which few groups are mixed, then GRPO for as many trajectories.

    One hop is known and three are not: of four rollouts all are right, or none is, for four questions in five
    (docs/log.md).
    """
    sft, rows, held_out = warm / "sft/hf", run / "train.parquet", warm / "world/held_out.parquet"
    small = [
        f"actor_rollout_ref.rollout.n={COLD_GROUP}",
        f"data.train_batch_size={COLD_BATCH}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={COLD_BATCH}",
    ]
    mix = ("data", "mix", "--input", warm / "world/train.parquet", "--output", rows, "--by", "hops")
    shares = ("--ratio", "1=0.5", "--ratio", "2=0", "--ratio", "3=0.5", "--seed", seed)
    pipeline = Pipeline(run, {"seed": seed, "steps": args.cold_steps, "lr": args.lr})
    with pipeline.opened(), tool_server(warm / "index", TOPK, run / "tools.log") as tools:
        head = [
            Stage("rows", "questions of one and of three hops", [(*mix, *shares)], 2),
            train_stage(run, tools, "dapo", sft, args.cold_steps, seed, args.lr, 120, rows, small),
        ]
        pipeline.run(head)
        steps = _batches(run / "dapo/metrics.jsonl")
        pipeline.run(
            [
                *head,
                evaluate_stage(run, tools, "dapo", run / "dapo/hf", "after dapo", ("none",), held_out),
                train_stage(run, tools, "grpo", sft, steps, seed, args.lr, 3.0 * steps, rows, small),
                evaluate_stage(run, tools, "grpo", run / "grpo/hf", "after grpo", ("none",), held_out),
            ],
            start=len(head),
        )


def _batches(metrics: Path) -> int:
    """Batches of groups that a run generated in all: so many steps does GRPO take for the same rollouts."""
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    generated = sum(int(line["scout/groups_generated"]) for line in lines)
    return math.ceil(generated / COLD_BATCH)


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
            if args.cold:
                print(f"== seed {seed}, cold start", flush=True)
                _cold(args.out / f"cold/seed{seed}", args.out / f"seed{seed}", seed, args)
        except StageFailedError as failed:
            print(
                f"scout compare-algos: stage {failed.stage} of seed {seed} failed (exit code {failed.code}); "
                "mend the cause named above and run the same command: it goes on from here",
                file=sys.stderr,
            )
            return failed.code if failed.code > 0 else 128 - failed.code
    shown = [args.out, *([args.out / "cold"] if args.cold else [])]
    return max(scout(("eval", "algos", folder))[0] for folder in shown)
