"""The stages on the made-up world that the quickstart and the comparison of algorithms share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scout_cli.pipeline import Command, Stage

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


def prepare_stages(run: Path, seed: int) -> list[Stage]:
    """What needs no tool server: the world, its index, and the untrained model."""
    world = run / "world"
    return [
        Stage("world", "a made-up world", [("world", "make", "--out", world, "--seed", seed)], 2),
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
                    *("--out", run / "base", "--seed", seed, "--max-positions", 1024),
                )
            ],
            10,
        ),
    ]


def evaluate_stage(
    run: Path,
    tools: str,
    stage: str,
    model: Path,
    label: str,
    controls: Sequence[str] = ("none", "blank", "shuffled"),
    rows: Path | None = None,
) -> Stage:
    """Held-out questions, greedy, once for each control; ``rows``: other questions than the world's."""
    rows = rows or run / "world/held_out.parquet"
    commands: list[Command] = []
    for control in controls:
        out = run / "eval" / (stage if control == "none" else f"{stage}.{control}")
        commands.append(
            (
                *("eval", "run", "--rows", rows, "--policy", f"hf:{model}"),
                *("--tools", tools, "--stage", stage, "--control", control, "--out", out),
                *("--max-turns", MAX_TURNS, "--max-turn-tokens", MAX_TURN_TOKENS),
                *("--max-obs-tokens", MAX_OBS_TOKENS, "--max-response-tokens", MAX_RESPONSE_TOKENS),
                *("--batch-size", EVAL_BATCH, "--concurrency", EVAL_BATCH, "--max-model-len", 1024),
                # Tiny matrices: a second thread wins nothing, and loses much where a core is busy.
                *("--threads", 1),
            )
        )
    return Stage(f"eval_{stage}", f"evaluation {label}, on entities never met", commands, 8 * len(commands))


def train_stage(
    run: Path,
    tools: str,
    algo: str,
    model: Path,
    steps: int,
    seed: int,
    lr: float,
    expect_s: float,
    rows: Path | None = None,
    settings: Sequence[str] = (),
) -> Stage:
    """``scout train`` from one model, into ``run/ALGO``; ``rows``: other questions than the world's."""
    rows = rows or run / "world/train.parquet"
    command: Command = (
        *("train", "--algo", algo, "--size", "tiny", "--cluster", "cpu", "--engine", "verl"),
        *("--model", model, "--train", rows, "--tools", tools, "--out", run / algo),
        *("--steps", steps, "--save-every", 10, "--seed", seed, "--stage", algo),
        *("--set", f"actor_rollout_ref.actor.optim.lr={lr}"),
        *("--set", f"scout.episode.max_turns={MAX_TURNS}"),
        *("--set", f"scout.episode.max_turn_tokens={MAX_TURN_TOKENS}"),
        *("--set", f"scout.episode.max_obs_tokens={MAX_OBS_TOKENS}"),
        *("--set", f"data.max_response_length={MAX_RESPONSE_TOKENS}"),
        *(word for setting in settings for word in ("--set", setting)),
    )
    return Stage(algo, f"{algo.upper()}, {steps} steps", [command], expect_s)


def warm_up_stages(run: Path, tools: str, sft_steps: int, seed: int) -> list[Stage]:
    """Demonstrations from the running server, and the warm-up on them."""
    return [
        Stage(
            "demos",
            "demonstrations from the tool server",
            [
                (
                    *("sft", "harvest", "--rows", run / "world/sft.parquet", "--server", tools),
                    *("--out", run / "demos.parquet", "--seed", seed),
                )
            ],
            15,
        ),
        Stage(
            "sft",
            f"warm-up, {sft_steps} steps",
            [
                (
                    *("sft", "train", "--model", run / "base", "--demos", run / "demos.parquet"),
                    *("--out", run / "sft", "--steps", sft_steps, "--seed", seed),
                    *("--max-obs-tokens", MAX_OBS_TOKENS, "--threads", 2),
                )
            ],
            120,
        ),
    ]
