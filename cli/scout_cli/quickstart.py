"""`scout quickstart`: the whole job on a CPU, in order, resumable, with the code that larger machines run."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

from scout_cli.pipeline import Command, Pipeline, Stage, StageFailedError, tool_server
from scout_protocol.errors import UserError

# The recipe of the demonstration; docs/log.md says how each number was found.
SFT_STEPS = 600
GRPO_STEPS = 30
GRPO_LR = 2e-4
DAPO_STEPS = 40
DAPO_LR = 1e-4  # goes on from GRPO's weights: at 2e-4 it lost on seed 0 what GRPO had won
TOPK = 1
MAX_TURNS = 4
MAX_TURN_TOKENS = 64
MAX_OBS_TOKENS = 96
MAX_RESPONSE_TOKENS = 384
EVAL_BATCH = 100


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


def prepare_stages(run: Path, args: argparse.Namespace) -> list[Stage]:
    """What needs no tool server: the world, its index, and the untrained model."""
    world = run / "world"
    return [
        Stage("world", "a made-up world", [("world", "make", "--out", world, "--seed", args.seed)], 2),
        Stage(
            "index",
            "BM25 index",
            [("index", "build", world / "corpus.jsonl", "--index", run / "index")],
            2,
        ),
        Stage(
            "init",
            "a tiny Qwen3 and its tokenizer, from nothing",
            [
                (
                    *("sft", "init", "--corpus", world / "corpus.jsonl", "--rows", world / "sft.parquet"),
                    *("--out", run / "base", "--seed", args.seed, "--max-positions", 1024),
                )
            ],
            10,
        ),
    ]


def _evaluate(run: Path, tools: str, stage: str, model: Path, label: str) -> Stage:
    commands: list[Command] = []
    for control in ("none", "blank", "shuffled"):
        out = run / "eval" / (stage if control == "none" else f"{stage}.{control}")
        commands.append(
            (
                *("eval", "run", "--rows", run / "world/held_out.parquet", "--policy", f"hf:{model}"),
                *("--tools", tools, "--stage", stage, "--control", control, "--out", out),
                *("--max-turns", MAX_TURNS, "--max-turn-tokens", MAX_TURN_TOKENS),
                *("--max-obs-tokens", MAX_OBS_TOKENS, "--max-response-tokens", MAX_RESPONSE_TOKENS),
                *("--batch-size", EVAL_BATCH, "--concurrency", EVAL_BATCH, "--max-model-len", 1024),
                *("--threads", 2),
            )
        )
    return Stage(f"eval_{stage}", f"evaluation {label}, on entities never met", commands, 25)


def _train(
    run: Path, tools: str, algo: str, model: Path, steps: int, seed: int, lr: float, expect_s: float
) -> Stage:
    command: Command = (
        *("train", "--algo", algo, "--size", "tiny", "--cluster", "cpu", "--engine", "verl"),
        *("--model", model, "--train", run / "world/train.parquet", "--tools", tools, "--out", run / algo),
        *("--steps", steps, "--save-every", 10, "--seed", seed, "--stage", algo),
        *("--set", f"actor_rollout_ref.actor.optim.lr={lr}"),
        *("--set", f"scout.episode.max_turns={MAX_TURNS}"),
        *("--set", f"scout.episode.max_turn_tokens={MAX_TURN_TOKENS}"),
        *("--set", f"scout.episode.max_obs_tokens={MAX_OBS_TOKENS}"),
        *("--set", f"data.max_response_length={MAX_RESPONSE_TOKENS}"),
    )
    return Stage(algo, f"{algo.upper()}, {steps} steps", [command], expect_s)


def learning_stages(run: Path, tools: str, args: argparse.Namespace) -> list[Stage]:
    """Demonstrations, warm-up, GRPO, DAPO, with an evaluation before and after each, and the report."""
    base, sft, grpo, dapo = run / "base", run / "sft/hf", run / "grpo/hf", run / "dapo/hf"
    return [
        _evaluate(run, tools, "base", base, "before SFT"),
        Stage(
            "demos",
            "demonstrations from the tool server",
            [
                (
                    *("sft", "harvest", "--rows", run / "world/sft.parquet", "--server", tools),
                    *("--out", run / "demos.parquet", "--seed", args.seed),
                )
            ],
            15,
        ),
        Stage(
            "sft",
            f"warm-up, {args.sft_steps} steps",
            [
                (
                    *(
                        "sft",
                        "train",
                        "--model",
                        base,
                        "--demos",
                        run / "demos.parquet",
                        "--out",
                        run / "sft",
                    ),
                    *("--steps", args.sft_steps, "--seed", args.seed, "--max-obs-tokens", MAX_OBS_TOKENS),
                    *("--threads", 2),
                )
            ],
            120,
        ),
        _evaluate(run, tools, "sft", sft, "after SFT"),
        _train(run, tools, "grpo", sft, args.grpo_steps, args.seed, GRPO_LR, 110),
        _evaluate(run, tools, "grpo", grpo, "after GRPO"),
        _train(run, tools, "dapo", grpo, args.dapo_steps, args.seed, DAPO_LR, 190),
        _evaluate(run, tools, "dapo", dapo, "after DAPO"),
        Stage("report", "report", [("report", "--run", run)], 2),
    ]


def main(argv: list[str]) -> int:
    """Run the whole job; returns the exit status of the first command that fails.

    Raises:
        UserError: the folder is in use or holds another run.
    """
    args = _parser().parse_args(argv)
    run: Path = args.run
    settings: dict[str, Any] = {k: v for k, v in vars(args).items() if k != "run"}
    pipeline = Pipeline(run, settings)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        with pipeline.opened(), contextlib.ExitStack() as stack:
            first = prepare_stages(run, args)
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
