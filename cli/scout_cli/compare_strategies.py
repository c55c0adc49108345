"""`python -m scout_cli.compare_strategies`: what each way to demonstrate is worth, on the made-up world.

World, index and untrained model are shared; each strategy then has its own demonstrations, warm-up, 30 steps
of GRPO and two evaluations, with the quickstart's settings. Killed at any moment, the same command goes on.
The last thing it does is to print a Markdown table.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scout_cli import stages as shared
from scout_cli.machine import probe, require
from scout_cli.pipeline import Command, Pipeline, Stage, StageFailedError, tool_server
from scout_cli.stages import evaluate_stage, prepare_stages, train_stage
from scout_protocol.errors import UserError

# ``oracle``: the questions' own plans, played to their end. ``policy`` samples the model that GRPO made of
# the oracle's warm-up, so it comes after it.
STRATEGIES = ("oracle", "golden", "keywords", "bridge", "policy")
MIN_DISK_FREE_GIB = 1.0
LIMITS: Command = (
    *("--max-turns", shared.MAX_TURNS, "--max-turn-tokens", shared.MAX_TURN_TOKENS),
    *("--max-obs-tokens", shared.MAX_OBS_TOKENS),
    *("--max-response-tokens", shared.MAX_RESPONSE_TOKENS),
)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="compare_strategies", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--run", type=Path, default=Path("runs/strategies"), help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default %(default)s")
    parser.add_argument("--sft-steps", type=int, default=shared.SFT_STEPS, help="default %(default)s")
    parser.add_argument("--grpo-steps", type=int, default=shared.GRPO_STEPS, help="default %(default)s")
    parser.add_argument(
        "--only", nargs="+", choices=STRATEGIES, default=list(STRATEGIES), help="default: all, in this order"
    )
    return parser


def harvest_command(run: Path, tools: str, strategy: str, seed: int) -> Command:
    """How the demonstrations of one strategy are harvested; all from the same questions."""
    common: Command = (
        *("sft", "harvest", "--rows", run / "world/sft.parquet", "--server", tools, "--seed", seed),
        *("--out", run / strategy / "demos.parquet"),
    )
    if strategy == "oracle":
        return (*common, "--early-stop-share", 0)
    if strategy == "policy":
        policy = f"hf:{run / 'oracle/grpo/hf'}"
        return (*common, "--strategy", "policy", "--policy", policy, "--samples", 2, *LIMITS)
    # the cap on queries that know the answer would leave nothing of golden
    return (*common, "--strategy", strategy, "--max-revealing-share", 1)


def stages_of(run: Path, tools: str, strategy: str, args: argparse.Namespace) -> list[Stage]:
    """Demonstrations, warm-up, evaluation, GRPO, evaluation, in a folder of the strategy's own."""
    here = run / strategy
    held_out, rows = run / "world/held_out.parquet", run / "world/train.parquet"
    sft: Command = (
        *("sft", "train", "--model", run / "base", "--demos", here / "demos.parquet", "--out", here / "sft"),
        *("--steps", args.sft_steps, "--seed", args.seed, "--max-obs-tokens", shared.MAX_OBS_TOKENS),
    )
    stages = [
        Stage("demos", "demonstrations", [harvest_command(run, tools, strategy, args.seed)], 15),
        Stage("sft", f"warm-up, {args.sft_steps} steps", [sft], 140),
        evaluate_stage(here, tools, "sft", here / "sft/hf", "after SFT", ("none",), held_out),
        train_stage(
            here, tools, "grpo", here / "sft/hf", args.grpo_steps, args.seed, shared.GRPO_LR, 110, rows
        ),
        evaluate_stage(here, tools, "grpo", here / "grpo/hf", "after GRPO", ("none",), held_out),
    ]
    return [replace(s, name=f"{strategy}_{s.name}", title=f"{strategy}: {s.title}") for s in stages]


def read_strategy(here: Path, strategy: str) -> dict[str, Any] | None:
    """The numbers of one strategy; None where it is not finished."""
    files = [here / "demos.parquet.card.json", *(here / f"eval/{s}/summary.json" for s in ("sft", "grpo"))]
    if not all(file.is_file() for file in files):
        return None
    card, sft, grpo = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    played = card["strategies"]["plan" if strategy == "oracle" else strategy]
    n = card["demonstrations"]
    return {
        "questions": played["questions"],
        "context": played["in context"] / played["questions"],
        "kept": n,
        "revealing": card["query_reveals_answer"] / n,
        "searches": sum(int(count) * rows for count, rows in card["searches"].items()) / n,
        "sft": sft["metrics"]["overall"]["em"]["mean"],
        "grpo": grpo["metrics"]["overall"]["em"]["mean"],
        "grpo_searches": grpo["metrics"]["overall"]["searches"],
    }


def table(run: Path, strategies: Sequence[str]) -> str:
    """Markdown, one line for each strategy that is finished.

    ``with context``: of the questions played, those whose results hold the answer.
    """
    lines = [
        "| strategy | with context | kept | query reveals the answer | searches per demonstration "
        "| EM after SFT | EM after GRPO | searches after GRPO |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in strategies:
        n = read_strategy(run / name, name)
        if n is None:
            lines.append(f"| {name} | not finished | | | | | | |")
            continue
        lines.append(
            f"| {name} | {n['context']:.1%} of {n['questions']} | {n['kept']} | {n['revealing']:.1%} "
            f"| {n['searches']:.2f} | {n['sft']:.3f} | {n['grpo']:.3f} | {n['grpo_searches']:.2f} |"
        )
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Run what is not done yet and print the table; the exit status of the first command that fails.

    Raises:
        UserError: the folder is in use or of a run with other settings, or policy without its oracle.
    """
    args = _parser().parse_args(argv)
    run: Path = args.run
    if "policy" in args.only and "oracle" not in args.only and not (run / "oracle/grpo/hf").is_dir():
        raise UserError("--only", "policy", "samples the oracle's model: add oracle")
    settings = {"seed": args.seed, "sft_steps": args.sft_steps, "grpo_steps": args.grpo_steps}
    pipeline = Pipeline(run, settings)
    require(probe(run), min_disk_free_gib=MIN_DISK_FREE_GIB)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        with pipeline.opened():
            first = prepare_stages(run, args.seed)

            def every(tools: str) -> list[Stage]:
                chosen = [name for name in STRATEGIES if name in args.only]
                return [*first, *(stage for name in chosen for stage in stages_of(run, tools, name, args))]

            pipeline.run(every(""), stop=len(first))
            with tool_server(run / "index", shared.TOPK, run / "tools.log") as tools:
                pipeline.run(every(tools), start=len(first))
    except StageFailedError as failed:
        print(table(run, args.only))
        print(f"compare_strategies: stage {failed.stage} failed; the same command goes on", file=sys.stderr)
        return failed.code if failed.code > 0 else 128 - failed.code
    print(table(run, args.only))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        print(f"compare_strategies: {error}", file=sys.stderr)
        sys.exit(2)
