"""The options of ``scout eval run``, and the `EvalConfig` that they make."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scout_eval.run import EvalConfig

CONTROLS = ("none", "blank", "shuffled", "random")
# Defaults of the budget; an option that is not given is None, so that --like can stand between.
BUDGET: dict[str, Any] = {
    "dialect": "search-r1",
    "max_turns": 4,
    "max_turn_tokens": 256,
    "max_response_tokens": 2048,
    "max_obs_tokens": 512,
    "force_answer": False,
    "max_same_searches": 0,
}


def run_options(run: argparse.ArgumentParser) -> None:
    """Add the options, importing nothing heavy."""
    run.add_argument("--rows", type=Path, required=True, help="parquet file of RL rows")
    run.add_argument("--policy", required=True, help="oracle, hf:PATH or openai:MODEL@URL")
    run.add_argument("--tools", required=True, metavar="URL", help="base URL of the tool server")
    run.add_argument(
        "--tools-token-env", default="", metavar="NAME", help="variable with the tool server's bearer token"
    )
    run.add_argument(
        "--out", type=Path, required=True, help="folder for the files, e.g. runs/x/eval/sft.blank"
    )
    run.add_argument(
        "--stage", default="eval", help="name of the stage: base, sft, grpo, dapo (default: eval)"
    )
    run.add_argument(
        "--control", choices=CONTROLS, default="none", help="take the evidence away (default: none)"
    )
    run.add_argument("--limit", type=int, help="only the first N rows")
    run.add_argument(
        "--samples", type=int, default=1, help="trajectories a question, for pass@k (default: 1)"
    )
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--concurrency", type=int, default=64, help="trajectories at once (default: 64)")
    run.add_argument(
        "--like", type=Path, metavar="RUN", help="budget and reward of a training run; options override it"
    )
    reward = run.add_argument_group("reward (the column of that name; EM and F1 keep the papers' rule)")
    reward.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the reward, as of `scout reward`, e.g. step_penalty=0.02 (repeatable)",
    )
    reward.add_argument(
        "--step", type=int, help="training step of the policy; needed where format_score decays"
    )
    _episode_options(run.add_argument_group("episode"))
    _policy_options(run.add_argument_group("policy"))


def _episode_options(episode: argparse._ArgumentGroup) -> None:
    episode.add_argument("--dialect", help="search-r1 or react (default: search-r1)")
    episode.add_argument("--max-turns", type=int, help="policy turns (default: 4)")
    for name in ("max_turn_tokens", "max_response_tokens", "max_obs_tokens"):
        flag = f"--{name.replace('_', '-')}"
        episode.add_argument(flag, type=int, help=f"default: {BUDGET[name]}")
    episode.add_argument(
        "--force-answer",
        action=argparse.BooleanOptionalAction,
        help="before the last turn the tool says that it is the last (default: no)",
    )
    episode.add_argument(
        "--max-same-searches",
        type=int,
        help="one more identical search is answered by a note; 0: no limit (default: 0)",
    )
    episode.add_argument("--turn-timeout-s", type=float, default=120.0)
    episode.add_argument("--trajectory-timeout-s", type=float, default=600.0)
    episode.add_argument("--tool-timeout-s", type=float, default=30.0)


def _policy_options(policy: argparse._ArgumentGroup) -> None:
    policy.add_argument("--temperature", type=float, default=0.0)
    policy.add_argument(
        "--batch-size", type=int, default=64, help="hf: turns generated together (default: 64)"
    )
    policy.add_argument(
        "--max-model-len", type=int, default=4096, help="hf: tokens of context (default: 4096)"
    )
    policy.add_argument("--threads", type=int, help="hf: torch threads")
    policy.add_argument("--device", default="cpu", help="hf: cpu, cuda, npu (default: cpu)")
    policy.add_argument(
        "--api-key-env", default="OPENAI_API_KEY", metavar="NAME", help="openai: variable with the key"
    )
    policy.add_argument(
        "--style", choices=("turns", "continue"), default="turns", help="openai: see the README"
    )


def run_config(args: argparse.Namespace) -> EvalConfig:
    """The configuration that the options ask for.

    Raises:
        UserError: a value that cannot be used, or ``--like`` names no training run.
    """
    from scout_agent.episode import EpisodeSettings
    from scout_eval.policy_factory import PolicyOptions
    from scout_eval.run import EvalConfig
    from scout_eval.training_run import read_run
    from scout_reward.settings import RewardSettings, parse_settings

    episode, reward = read_run(args.like) if args.like else (BUDGET, {})
    given = {name: getattr(args, name) for name in BUDGET}
    budget = {name: episode[name] if value is None else value for name, value in given.items()}
    return EvalConfig(
        rows=args.rows,
        policy=args.policy,
        tools=args.tools,
        tools_token_env=args.tools_token_env,
        out=args.out,
        stage=args.stage,
        control=args.control,
        limit=args.limit,
        samples=args.samples,
        seed=args.seed,
        concurrency=args.concurrency,
        tool_timeout_s=args.tool_timeout_s,
        settings=EpisodeSettings(
            **budget, turn_timeout_s=args.turn_timeout_s, trajectory_timeout_s=args.trajectory_timeout_s
        ),
        options=PolicyOptions(
            temperature=args.temperature,
            batch_size=args.batch_size,
            max_model_len=args.max_model_len,
            threads=args.threads,
            device=args.device,
            api_key_env=args.api_key_env,
            style=args.style,
        ),
        reward=parse_settings(args.set, RewardSettings(**reward)),
        step=args.step,
    )
