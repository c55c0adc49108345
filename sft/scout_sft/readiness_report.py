"""The result of `scout sft readiness`: a JSON file for other commands, a card for the terminal."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scout_data.manifest import write_json
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow, Trace
from scout_sft.readiness import MORE_SFT, READY, SCHEMA, TOO_FAR, Finding, Limits
from scout_sft.sampling import SamplingSettings

if TYPE_CHECKING:
    from rich.console import Console

_MEANING = {
    READY: "ready for reinforcement learning",
    MORE_SFT: "more SFT: the warm-up has not taught enough yet",
    TOO_FAR: "too far: diversity is lost, groups will be uniform",
}
_HEAD_BYTES = 1 << 20


def model_mark(policy_spec: str) -> str:
    """A short digest of a model folder's weights, by their sizes and first MiB; "" for other policies.

    It tells whether a report is about the weights that are there now, without reading all of them.
    """
    kind, _, folder = policy_spec.partition(":")
    if kind != "hf":
        return ""
    digest = hashlib.sha256()
    for weights in sorted(Path(folder).glob("*.safetensors")):
        digest.update(f"{weights.name} {weights.stat().st_size}\n".encode())
        with weights.open("rb") as file:
            digest.update(file.read(_HEAD_BYTES))
    return digest.hexdigest()


def build_report(
    verdict: str,
    found: Sequence[Finding],
    figures: dict[str, Any],
    policy_spec: str,
    rows_file: Path,
    rows: Sequence[RLRow],
    settings: SamplingSettings,
    limits: Limits,
    lost: int,
) -> dict[str, Any]:
    """The report as plain values; schema ``scout.readiness/1``."""
    asked = hashlib.sha256(msgspec.json.encode([[row.id, row.prompt] for row in rows])).hexdigest()
    return {
        "schema": SCHEMA,
        "verdict": verdict,
        "policy": policy_spec,
        "model_mark": model_mark(policy_spec),
        "rows": rows_file.name,
        "questions_sha256": asked,
        "figures": figures,
        "findings": [
            {
                "name": finding.name,
                "value": finding.value,
                "limit": finding.limit,
                "rule": "at least" if finding.at_least else "at most",
                "ok": finding.ok,
                "says": "" if finding.ok else finding.says,
                "remedy": "" if finding.ok else finding.remedy,
            }
            for finding in found
        ],
        "lost_to_outages": lost,
        "settings": asdict(settings),
        "limits": asdict(limits),
    }


def write_report(path: Path, report: dict[str, Any], groups: Sequence[Sequence[Trace]]) -> Path:
    """Write ``path`` (JSON) and, beside it, every rollout as ``PATH.traces.jsonl``; returns the latter.

    Raises:
        UserError: it cannot be written.
    """
    traces = path.with_name(path.name.removesuffix(".json") + ".traces.jsonl")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        encoder = msgspec.json.Encoder()
        with traces.open("wb") as file:
            for group in groups:
                for trace in group:
                    file.write(encoder.encode(trace) + b"\n")
        write_json(path, report)
    except OSError as error:
        raise UserError("--out", path, f"cannot be written: {error.strerror or error}") from error
    return traces


def print_card(report: dict[str, Any], console: Console) -> None:
    """The findings with their limits, what else was measured, and the verdict."""
    from rich.table import Table

    figures = report["figures"]
    table = Table(
        title=f"{report['policy']}: {figures['rollouts']} rollouts of {figures['questions']} questions"
    )
    for name, justify in (
        ("", "left"),
        ("figure", "left"),
        ("value", "right"),
        ("wanted", "right"),
        ("", "left"),
    ):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for finding in report["findings"]:
        value = finding["value"]
        sign = "≥" if finding["rule"] == "at least" else "≤"
        table.add_row(
            "[green]ok[/]"
            if finding["ok"]
            else "[red]miss[/]"
            if finding["says"] != "warn"
            else "[yellow]warn[/]",
            finding["name"].replace("_", " "),
            "unknown" if value is None else f"{value:.3f}",
            f"{sign} {finding['limit']:g}",
            finding["remedy"],
        )
    console.print(table)
    console.print(
        f"pass@1 {figures['pass_at_1']:.3f}, pass@{figures['k']} {figures['pass_at_k']:.3f} · "
        f"searches {figures['searches_mean']:.2f} · policy tokens {figures['policy_tokens_mean']:.0f}, "
        f"95 % at most {figures['policy_tokens_p95']} · "
        f"groups all right {figures['all_right_group_share']:.2f}, "
        f"all wrong {figures['all_wrong_group_share']:.2f}",
        highlight=False,
        soft_wrap=True,
    )
    if report["lost_to_outages"]:
        console.print(f"lost to outages and left out: {report['lost_to_outages']}", highlight=False)
    colour = "green" if report["verdict"] == READY else "red"
    console.print(f"[bold {colour}]{report['verdict']}[/]: {_MEANING[report['verdict']]}", highlight=False)
