"""`scout reward …`: explain scores, serve them, check the gate, time the scorer."""

from __future__ import annotations

import argparse
import sys

from scout_protocol.dialect import DIALECTS
from scout_protocol.errors import UserError
from scout_reward import explain, serve
from scout_reward.settings import RewardSettings, parse_settings


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scout reward", description="Scores of trajectories and their parts."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    told = {
        "explain": "a table of the parts of every score",
        "serve": "a scoring service over HTTP: POST /score, GET /health, GET /metrics",
        "gate": "gold must score 1.0 and twelve known hacks what they should",
        "bench": "time the scorer on made-up trajectories",
    }
    subparsers = {name: commands.add_parser(name, help=text) for name, text in told.items()}
    for sub in subparsers.values():
        sub.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="a setting of the reward, e.g. step_penalty=0.02 (repeatable; README lists them)",
        )
        sub.add_argument(
            "--dialect",
            default="search-r1",
            choices=sorted(DIALECTS),
            help="tags where the input names none (default %(default)s)",
        )
    explain.add_arguments(subparsers["explain"])
    serve.add_arguments(subparsers["serve"])
    subparsers["gate"].add_argument(
        "--max-searches", type=int, default=1, help="of the run's budget (default %(default)s)"
    )
    add = subparsers["bench"].add_argument
    add("--n", type=int, default=100_000, help="trajectories (default %(default)s)")
    add("--kb", type=float, default=4.0, help="kB of text in each (default %(default)s)")
    add(
        "--policy-share",
        type=float,
        default=1.0,
        help="of it by the policy (default %(default)s: all)",
    )
    add("--at-most-s", type=float, default=20.0, help="longer is exit status 1 (default %(default)s)")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of `scout reward`."""
    args = _parser().parse_args(argv)
    settings = parse_settings(args.set)
    if args.command == "serve":
        return serve.serve(args, settings)
    if args.command == "gate":
        return _gate(settings, args.max_searches)
    if args.command == "bench":
        return _bench(args, settings)
    from scout_reward.shaping import announce

    announce(settings)
    return explain.explain(args, settings)


def _gate(settings: RewardSettings, max_searches: int) -> int:
    from scout_reward import gate

    passed = gate.check(settings, max_searches=max_searches)
    print("\n".join(passed) + "\ngate: passed")
    return 0


def _bench(args: argparse.Namespace, settings: RewardSettings) -> int:
    from scout_reward.bench import measure

    if args.n < 1 or not 0.5 <= args.kb <= 1000 or not 0 < args.policy_share <= 1:
        raise UserError(
            "--n, --kb, --policy-share",
            f"{args.n}, {args.kb}, {args.policy_share}",
            "at least 1 trajectory, 0.5 to 1000 kB, a share in (0, 1]",
        )
    found = measure(args.n, args.kb, args.policy_share, settings)
    print(
        f"{found.n} trajectories of {found.mean_bytes / 1000:.1f} kB in {found.seconds:.2f} s on one core: "
        f"{found.seconds / found.n * 1e6:.0f} µs each (mean reward {found.mean_total:.3f})"
    )
    if found.seconds > args.at_most_s:
        print(f"scout reward: slower than --at-most-s {args.at_most_s:g}", file=sys.stderr)
        return 1
    return 0
