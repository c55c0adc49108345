"""`scout sft readiness`: its arguments, and the command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scout_protocol.dialect import DIALECTS


def add_sampling(parser: argparse.ArgumentParser, prefix: str = "") -> None:
    """How rollouts are sampled: the limits of an episode, how many, how hot."""

    def add(name: str, **options: Any) -> None:
        parser.add_argument(f"--{prefix}{name}", **options)

    add("samples", type=int, default=8, help="rollouts of each question")
    add("limit", type=int, default=64, help="questions, the first so many; 0 takes all")
    add("temperature", type=float, default=1.0, help="of sampling")
    add("max-turns", type=int, default=4, help="policy turns of an episode")
    add("max-turn-tokens", type=int, default=256, help="tokens of one turn")
    add("max-response-tokens", type=int, default=2048, help="policy and tool tokens of an episode")


def add(commands: Any, style: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser(
        "readiness", help="is the warmed-up model ready for reinforcement learning?", formatter_class=style
    )
    parser.add_argument("--policy", default="", help="hf:PATH or openai:MODEL@URL")
    parser.add_argument("--model", type=Path, help="model folder; short for --policy hf:PATH")
    parser.add_argument("--rows", type=Path, required=True, help="RL rows, parquet: those to train on")
    parser.add_argument("--server", default="http://127.0.0.1:5000", help="tool server")
    parser.add_argument(
        "--tools-token-env", default="", metavar="NAME", help="variable with the tool server's bearer token"
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="report; traces beside it; readiness.json beside --model, where preflight looks",
    )
    parser.add_argument("--batch", type=int, default=8, help="questions of the first training batch")
    add_sampling(parser)
    parser.add_argument("--max-obs-tokens", type=int, default=512, help="tokens of one observation")
    parser.add_argument("--max-model-len", type=int, default=4096, help="hf: longest context, tokens")
    parser.add_argument("--batch-size", type=int, default=64, help="hf: turns generated together")
    parser.add_argument("--concurrency", type=int, default=64, help="episodes at once")
    parser.add_argument("--call-timeout-s", type=float, default=30.0, help="seconds for one search")
    parser.add_argument("--threads", type=int, default=1, help="hf: torch threads")
    parser.add_argument("--device", default="cpu", help="hf: torch device")
    parser.add_argument("--seed", type=int, default=0, help="of sampling")
    parser.add_argument(
        "--dialect", default="search-r1", choices=sorted(DIALECTS), help="whose markers count"
    )
    limits = parser.add_argument_group("limits (a share each, but the entropy)")
    for name, default, text in (
        ("min-format", 0.95, "rollouts whose every turn is well formed"),
        ("min-searching", 0.5, "rollouts that search"),
        ("min-rewarded", 0.2, "right answers in the first batch"),
        ("min-mixed", 0.2, "groups whose rewards differ"),
        ("max-same-actions", 0.8, "groups whose rollouts all do the same"),
        ("min-entropy-nats", 0.005, "entropy of a sampled token"),
        ("max-language-mixing", 0.05, "rollouts that think in another language (warns)"),
        ("max-cut", 0.1, "rollouts that ran out of tokens (warns)"),
    ):
        limits.add_argument(f"--{name}", type=float, default=default, help=text)


def run(options: dict[str, Any]) -> int:
    """Sample, judge, write, show; 0 for ready, 1 for the other verdicts.

    Raises:
        UserError: a wrong input, or a tool server that is not there.
    """
    from rich.console import Console

    from scout_data.rows import read_rows
    from scout_protocol.dialect import get_dialect
    from scout_protocol.errors import UserError
    from scout_sft.readiness import READY, Limits, findings, verdict
    from scout_sft.readiness_report import build_report, print_card, write_report
    from scout_sft.rollouts import figures
    from scout_sft.sampling import SamplingSettings, sample_groups

    policy, model, rows_file, out = (options.pop(name) for name in ("policy", "model", "rows", "out"))
    if bool(policy) == (model is not None):
        raise UserError("--policy, --model", policy or model or "neither", "give one of the two")
    spec = policy or f"hf:{model}"
    out = out or (model.resolve().parent if model else Path()) / "readiness.json"
    batch = options.pop("batch")
    if batch < 1:
        raise UserError("--batch", batch, "must be at least 1")
    limits = Limits(**{name: options.pop(name) for name in Limits.__dataclass_fields__})
    settings = SamplingSettings(**options)
    rows = read_rows(rows_file)
    groups, lost = sample_groups(rows, spec, settings)
    measured = figures(groups, get_dialect(settings.dialect), batch)
    found = findings(measured, limits)
    judged = verdict(found)
    asked = rows[: settings.limit] if settings.limit else rows
    report = build_report(judged, found, measured, spec, rows_file, asked, settings, limits, lost)
    traces = write_report(out, report, groups)
    print_card(report, Console())
    print(f"{out}, {traces}")
    return 0 if judged == READY else 1
