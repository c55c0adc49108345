"""`scout real`: the whole path on real HotpotQA questions, from index to DAPO.

The tiny model cannot answer real questions; the point is that every part works on text nobody here wrote.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import urllib.request
from pathlib import Path
from typing import Any

from scout_cli.machine import probe, require
from scout_cli.pipeline import Command, Pipeline, Stage, StageFailedError, tool_server
from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError

# The warm-up learns these few questions by heart: DAPO needs groups that are neither all right nor all wrong.
N_TRAIN = 24
SFT_STEPS = 100
RL_STEPS = 5
N_ORACLE = 50
TOPK = 3
MAX_OBS_TOKENS = 192
MIN_DISK_FREE_GIB = 1.0  # of the run; the packages are there already


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scout real", description="The whole path on real HotpotQA questions."
    )
    parser.add_argument("--hotpot", type=Path, required=True, help="HotpotQA file with paragraphs")
    parser.add_argument("--run", type=Path, default=Path("runs/real"), help="folder (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default 0")
    return parser


def prepare_stages(run: Path, hotpot: Path, seed: int) -> list[Stage]:
    """Index, recall, rows, and an untrained model with a tokenizer made of this text."""
    rows: Command = ("data", "rows", "--input", hotpot, "--prompt", "brief", "--split", "dev")
    return [
        Stage("index", "index of the paragraphs", [("index", "build", hotpot, "--index", run / "index")], 3),
        Stage(
            "recall",
            "recall of the supporting titles",
            [("index", "eval", "--index", run / "index", "--questions", hotpot)],
            3,
        ),
        Stage(
            "rows",
            "questions as rows",
            [
                (*rows, "--output", run / "questions.parquet"),
                (*rows, "--plans", "--seed", seed, "--limit", N_TRAIN, "--output", run / "train.parquet"),
                ("index", "passages", hotpot, "--output", run / "corpus.jsonl"),
            ],
            5,
        ),
        Stage(
            "init",
            "a tiny Qwen3 and its tokenizer, from this text",
            [
                (
                    *("sft", "init", "--corpus", run / "corpus.jsonl", "--rows", run / "questions.parquet"),
                    *("--out", run / "base", "--vocab", 4096, "--max-positions", 2048, "--seed", seed),
                )
            ],
            15,
        ),
    ]


def _train(run: Path, tools: str, algo: str, model: Path, seed: int) -> Stage:
    command: Command = (
        *("train", "--algo", algo, "--cluster", "cpu", "--model", model),
        *("--train", run / "train.parquet", "--tools", tools),
        *("--out", run / algo, "--steps", RL_STEPS, "--seed", seed, "--stage", algo),
        *(
            "--set",
            "data.max_response_length=1024",
            "--set",
            f"scout.episode.max_obs_tokens={MAX_OBS_TOKENS}",
        ),
    )
    return Stage(algo, f"{algo.upper()}, {RL_STEPS} steps through the running server", [command], 90)


def learning_stages(run: Path, tools: str, seed: int) -> list[Stage]:
    """The oracle on 50 questions, demonstrations, a short warm-up, GRPO and DAPO."""
    return [
        Stage(
            "oracle",
            f"the scripted oracle on {N_ORACLE} questions",
            [
                (
                    *("eval", "run", "--rows", run / "questions.parquet", "--policy", "oracle"),
                    *("--tools", tools, "--limit", N_ORACLE, "--stage", "oracle", "--max-turns", 8),
                    *("--out", run / "eval/oracle"),
                )
            ],
            5,
        ),
        Stage(
            "demos",
            "demonstrations from the tool server",
            [
                (
                    *("sft", "harvest", "--rows", run / "train.parquet", "--server", tools),
                    *("--early-stop-share", 0, "--out", run / "demos.parquet", "--seed", seed),
                )
            ],
            5,
        ),
        Stage(
            "sft",
            f"warm-up, {SFT_STEPS} steps",
            [
                (
                    *("sft", "train", "--model", run / "base", "--demos", run / "demos.parquet"),
                    *("--out", run / "sft", "--steps", SFT_STEPS, "--seed", seed, "--val-share", 0.1),
                    *("--max-obs-tokens", MAX_OBS_TOKENS, "--threads", 2),
                )
            ],
            110,
        ),
        _train(run, tools, "grpo", run / "sft/hf", seed),
        _train(run, tools, "dapo", run / "sft/hf", seed),
    ]


def ask(tools: str, question: str) -> str:
    """One real question to the running server, as curl would send it; returns the observation.

    Raises:
        UserError: the answer is not a valid observation.
    """
    action = f"{SEARCH_R1.search.open} {question} {SEARCH_R1.search.close}"
    body = json.dumps({"trajectory_ids": ["t"], "actions": [action]}).encode()
    request = urllib.request.Request(  # noqa: S310  our own server on loopback
        f"{tools}/get_observation", body, {"Content-Type": "application/json"}
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as response:
        reply: dict[str, Any] = json.load(response)
    if reply["valids"] != [True]:
        raise UserError("tool server", reply, "did not answer a real question: see tools.log of the run")
    return str(reply["observations"][0])


def main(argv: list[str]) -> int:
    """Run the whole path; returns the exit status of the first command that fails.

    Raises:
        UserError: the file is missing, the machine is too small, or the folder is in use or of another run.
    """
    args = _parser().parse_args(argv)
    run: Path = args.run
    if not args.hotpot.is_file():
        raise UserError("--hotpot", args.hotpot, "no such file: name a HotpotQA file")
    pipeline = Pipeline(run, {"hotpot": str(args.hotpot.resolve()), "seed": args.seed})
    require(probe(run), min_disk_free_gib=MIN_DISK_FREE_GIB)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, lambda *_: sys.exit(129))
    try:
        with pipeline.opened():
            first = prepare_stages(run, args.hotpot, args.seed)
            pipeline.run([*first, *learning_stages(run, "", args.seed)], stop=len(first))
            with tool_server(run / "index", TOPK, run / "tools.log") as tools:
                question = _first_question(run / "questions.parquet")
                pipeline.console.print(
                    f"POST {tools}/get_observation: {question}", highlight=False, markup=False
                )
                print(ask(tools, question).strip())
                pipeline.run([*first, *learning_stages(run, tools, args.seed)], start=len(first))
    except StageFailedError as failed:
        print(f"scout real: stage {failed.stage} failed (exit code {failed.code})", file=sys.stderr)
        return failed.code if failed.code > 0 else 128 - failed.code
    except OSError as error:
        raise UserError("--run", run, f"{error}: free some space or choose another folder") from error
    print(f"traces of every rollout: {run}/grpo/traces.jsonl, {run}/dapo/traces.jsonl")
    return 0


def _first_question(rows: Path) -> str:
    from scout_data.rows import read_rows

    return read_rows(rows)[0].question
