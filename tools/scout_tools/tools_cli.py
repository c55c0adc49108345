"""`scout tools`: ask a running tool server one question, or put it under load."""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from scout_protocol.dialect import DIALECTS, get_dialect
from scout_protocol.errors import UserError


def main(argv: list[str]) -> int:
    """Run one subcommand.

    Raises:
        UserError: an option, a file or the server is not usable.
    """
    args = _parser().parse_args(argv)
    parts = urlsplit(args.url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UserError("--url", args.url, "give the server's base URL, e.g. http://127.0.0.1:5000")
    return _ask(args) if args.command == "ask" else _load_test(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scout tools", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    ask = commands.add_parser("ask", help="one query: observation, latency, cache level")
    ask.add_argument("query", help="the text between the search tags")
    ask.add_argument(
        "--raw", action="store_true", help="print the observation as the policy gets it, escaped"
    )
    ask.add_argument("--dialect", default="search-r1", help=f"one of {', '.join(sorted(DIALECTS))}")
    load = commands.add_parser("load-test", help="rollouts with pauses and repeats; writes a chart")
    add = load.add_argument
    add("--questions", type=Path, help="one a line, or HotpotQA; without it made-up ones")
    add("--rollouts", type=int, default=256, help="side by side (default %(default)s)")
    add("--group", type=int, default=8, help="rollouts on one question (default %(default)s)")
    add("--turns", default="2-4", help="searches of a rollout, fewest-most (default %(default)s)")
    add("--think-s", type=float, default=1.0, help="mean pause before a turn (default %(default)s)")
    add(
        "--repeat", type=float, default=0.6, help="chance to search what the group does (default %(default)s)"
    )
    add("--seed", type=int, default=0)
    add("--out", type=Path, default=Path("runs/load-test"), help="folder for report.html and samples.jsonl")
    for command in (ask, load):
        command.add_argument(
            "--url", default="http://127.0.0.1:5000", help="the server (default %(default)s)"
        )
        command.add_argument("--token-env", default="", metavar="NAME", help="variable with the bearer token")
    return parser


def _ask(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.text import Text

    search = get_dialect(args.dialect).search
    action = f"{search.open}{args.query}{search.close}"
    headers = {"Content-Type": "application/json"}
    if token := _token(args):
        headers["Authorization"] = f"Bearer {token}"
    body = json.dumps({"trajectory_ids": ["ask"], "actions": [action]}).encode()
    request = Request(f"{args.url.rstrip('/')}/get_observation", body, headers)  # noqa: S310  # checked in main
    start = time.perf_counter()
    try:
        # No proxy of the environment: the server is ours.
        with build_opener(ProxyHandler({})).open(request, timeout=60) as response:
            raw, cache = response.read(), response.headers.get("x-cache", "")
    except HTTPError as error:
        raise UserError(
            "--url", args.url, f"answered {error.code}: {error.read(500).decode(errors='replace')}"
        ) from error
    except (URLError, OSError) as error:
        raise UserError(
            "--url", args.url, f"cannot be asked ({error}): is `scout serve` running there?"
        ) from error
    took_ms = (time.perf_counter() - start) * 1000
    reply = json.loads(raw)
    observation, valid = reply["observations"][0], reply["valids"][0]
    facts = observation if isinstance(observation, dict) else {"obs": observation}
    console = Console(highlight=False)
    if args.raw:
        console.print(Text(json.dumps(facts["obs"], ensure_ascii=False)))
    else:
        console.print(Text(facts["obs"].strip()))
    inside = f"{reply['processing_time_ms']:.1f} ms in the server"
    console.print(
        Text(
            f"valid {str(valid).lower()} · cache {cache or 'none'} · {took_ms:.1f} ms, {inside}", style="dim"
        )
    )
    for name, value in facts.items():
        if name != "obs":
            console.print(Text(f"{name}: {value}", style="yellow"))
    return 0 if valid else 1


def _load_test(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from scout_tools.load.chart import page
    from scout_tools.load.generate import play
    from scout_tools.load.mix import Mix, plan
    from scout_tools.load.questions import made_up, read
    from scout_tools.load.samples import summarise
    from scout_tools.progress import bar

    few, _, many = args.turns.partition("-")
    if not (few.isdigit() and (many or few).isdigit() and 1 <= int(few) <= int(many or few) <= 100):
        raise UserError("--turns", args.turns, "give fewest-most, e.g. 2-4")
    for name, low, high in (
        ("rollouts", 1, 10**6),
        ("group", 1, 10**4),
        ("think_s", 0, 3600),
        ("repeat", 0, 1),
    ):
        if not low <= getattr(args, name) <= high:
            raise UserError(
                f"--{name.replace('_', '-')}", getattr(args, name), f"must be between {low} and {high}"
            )
    questions = read(args.questions) if args.questions else made_up(200)
    mix = Mix(args.group, (int(few), int(many or few)), args.think_s, args.repeat)
    plans = plan(questions, args.rollouts, mix, args.seed)

    with bar("rollouts", len(plans)) as advance:
        samples, used = play(args.url, plans, _token(args), advance)
    summary = summarise(samples)
    args.out.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(asdict(sample)) + "\n" for sample in samples)
    _write(args.out / "samples.jsonl", lines)
    title = (
        f"{args.rollouts} rollouts, groups of {args.group}, {args.turns} searches, {args.think_s:g} s pauses"
    )
    _write(args.out / "report.html", page(title, summary, samples))
    print(f"requests   {summary.n} in {summary.wall_s:.1f} s, {summary.per_second:.1f} /s")
    times = {"mean": summary.mean_ms, "p50": summary.p50_ms, "p95": summary.p95_ms, "p99": summary.p99_ms}
    print("latency    " + ", ".join(f"{name} {value:.2f} ms" for name, value in times.items()))
    print("outcomes   " + ", ".join(f"{name} {n}" for name, n in summary.outcomes.items()))
    print("cache      " + (", ".join(f"{name} {n}" for name, n in summary.caches.items()) or "not told"))
    print(f"chart      {args.out / 'report.html'}")
    if used.cpu_s > 0.9 * used.wall_s:
        share = used.cpu_s / used.wall_s
        print(
            f"generator  busy {share:.0%} of a core: the latencies hold its own waiting; use fewer rollouts"
        )
    lost = sum(n for name, n in summary.outcomes.items() if name.startswith(("lost", "http")))
    return 1 if lost else 0


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def _token(args: argparse.Namespace) -> str:
    if args.token_env and not os.environ.get(args.token_env):
        raise UserError("--token-env", args.token_env, "is not set")
    return os.environ.get(args.token_env, "") if args.token_env else ""
