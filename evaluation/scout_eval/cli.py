"""``scout eval run`` and ``scout eval show``."""

from __future__ import annotations

import argparse
from pathlib import Path

CONTROLS = ("none", "blank", "shuffled", "random")


def parser() -> argparse.ArgumentParser:
    """The command line, importing nothing heavy."""
    top = argparse.ArgumentParser(prog="scout eval", description="Evaluate a policy through the tool server.")
    commands = top.add_subparsers(dest="command", required=True, metavar="{run,show}")
    run = commands.add_parser("run", help="play the questions, write traces.jsonl and summary.json")
    run.add_argument("--rows", type=Path, required=True, help="parquet file of RL rows")
    run.add_argument("--policy", required=True, help="oracle, hf:PATH or openai:MODEL@URL")
    run.add_argument("--tools", required=True, metavar="URL", help="base URL of the tool server")
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
    run.add_argument("--samples", type=int, default=1, help="trajectories a question, for pass@k (default: 1)")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--concurrency", type=int, default=64, help="trajectories at once (default: 64)")
    episode = run.add_argument_group("episode")
    episode.add_argument("--dialect", default="search-r1", help="search-r1 or react (default: search-r1)")
    episode.add_argument("--max-turns", type=int, default=4, help="policy turns (default: 4)")
    episode.add_argument("--max-turn-tokens", type=int, default=256)
    episode.add_argument("--max-response-tokens", type=int, default=2048)
    episode.add_argument("--max-obs-tokens", type=int, default=512)
    episode.add_argument("--turn-timeout-s", type=float, default=120.0)
    episode.add_argument("--trajectory-timeout-s", type=float, default=600.0)
    episode.add_argument("--tool-timeout-s", type=float, default=30.0)
    policy = run.add_argument_group("policy")
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
    show = commands.add_parser(
        "show", help="print the numbers of a finished evaluation, or of all under a folder"
    )
    show.add_argument("folder", type=Path)
    return top


def main(argv: list[str]) -> int:
    """Run one command."""
    args = parser().parse_args(argv)
    from scout_eval.show import show

    if args.command == "show":
        show(args.folder)
        return 0
    from scout_agent.episode import EpisodeSettings
    from scout_eval.policy_factory import PolicyOptions
    from scout_eval.run import EvalConfig, run_eval

    config = EvalConfig(
        rows=args.rows,
        policy=args.policy,
        tools=args.tools,
        out=args.out,
        stage=args.stage,
        control=args.control,
        limit=args.limit,
        samples=args.samples,
        seed=args.seed,
        concurrency=args.concurrency,
        tool_timeout_s=args.tool_timeout_s,
        settings=EpisodeSettings(
            dialect=args.dialect,
            max_turns=args.max_turns,
            max_turn_tokens=args.max_turn_tokens,
            max_response_tokens=args.max_response_tokens,
            max_obs_tokens=args.max_obs_tokens,
            turn_timeout_s=args.turn_timeout_s,
            trajectory_timeout_s=args.trajectory_timeout_s,
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
    )
    run_eval(config)
    show(args.out)
    return 0
