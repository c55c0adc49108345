"""`audit`: is a file of RL rows what it claims to be? One verdict per question, before a run asks it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from scout_data.audit_order import block_finding, shares_along, window_finding
from scout_data.audit_prompts import prompt_findings
from scout_data.audit_text import text_findings
from scout_data.columns import groups, keys, read_table
from scout_data.files import sha256_of
from scout_data.findings import Audit, AuditSettings, Finding, Verdict, worst
from scout_data.manifest import read_manifest
from scout_protocol.errors import UserError

ORDER_KEYS = ("data_source", "type", "level", "hops")


def audit_path(parquet: str | os.PathLike[str]) -> Path:
    """``train.parquet`` -> ``train.audit.json``, in the same folder; the page is ``train.audit.html``."""
    return Path(parquet).with_suffix(".audit.json")


def audit(path: str | os.PathLike[str], settings: AuditSettings) -> Audit:
    """Look at a parquet file of RL rows.

    Raises:
        UserError: the file or the tokenizer cannot be read at all, an unknown name in ``allow``.
    """
    table = read_table(path, strict=False)
    sha256 = sha256_of(path)
    manifest = read_manifest(path, sha256) or {}
    made = manifest.get("settings") or {}
    on_purpose = f"curriculum by {made.get('curriculum')}" if made.get("order") == "curriculum" else ""
    findings: list[Finding] = []
    charts: dict[str, Any] = {"along": {}, "first": {}}
    for key in ORDER_KEYS:
        if key not in keys(table):
            continue
        values = groups(table, key)
        if len(set(values)) < 2:
            if key == "data_source":
                findings.append(Finding("sources", Verdict.OK, f"one source only: {values[0]}"))
            continue
        findings.append(block_finding(key, values, on_purpose))
        window = window_finding(key, values, settings.steps, settings.batch, on_purpose)
        findings.append(window)
        charts["along"][key] = shares_along(values)
        charts["first"][key] = {"whole": window.numbers["whole"], "first": window.numbers["first"]}
    columns = {name: table.column(name).to_pylist() for name in ("id", "question", "golden_answers")}
    found, series = text_findings(columns["id"], columns["question"], columns["golden_answers"], settings)
    findings += found
    charts |= series
    findings.append(_target(table, columns["golden_answers"]))
    found, not_checked, series = prompt_findings(table, settings)
    findings += found
    charts |= series
    _allow(findings, settings.allow)
    return Audit(
        file=Path(path).name,
        sha256=sha256,
        rows=table.num_rows,
        verdict=worst(finding.verdict for finding in findings),
        findings=findings,
        not_checked=not_checked,
        settings={k: v for k, v in _settings(settings).items() if v not in (None, ())},
        charts=charts,
    )


def _target(table: Any, answers: list[Any]) -> Finding:
    import pyarrow.compute as pc

    from scout_data.findings import counted

    target = pc.struct_field(table.column("reward_model"), ["ground_truth", "target"])
    rows = []
    if not target.equals(table.column("golden_answers")):
        rows = [i for i, (a, b) in enumerate(zip(target.to_pylist(), answers, strict=True)) if a != b]
    what = "are rewarded for another answer than the golden one"
    remedy = "ground_truth.target must equal golden_answers"
    return counted("rewarded answers", rows, table.num_rows, what, remedy)


def _allow(findings: list[Finding], allowed: tuple[str, ...]) -> None:
    names = [finding.name for finding in findings]
    for name in allowed:
        if name not in names:
            raise UserError("--allow", name, f"the findings are {', '.join(names)}")
    for finding in findings:
        if finding.name in allowed and finding.verdict is Verdict.REFUSE:
            finding.verdict, finding.said = Verdict.WARN, f"{finding.said}; allowed"


def _settings(settings: AuditSettings) -> dict[str, Any]:
    facts = {name: getattr(settings, name) for name in AuditSettings.__dataclass_fields__}
    if settings.tokenizer:
        facts["tokenizer"] = Path(settings.tokenizer).name  # no absolute paths: same inputs, same bytes
    return facts


def refusal(parquet: str | os.PathLike[str]) -> str | None:
    """Why an earlier audit of exactly these bytes refused; None where it did not, or there was none."""
    path = audit_path(parquet)
    if not path.is_file():
        return None
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Audit)
    except msgspec.DecodeError:
        return None
    if found.verdict is not Verdict.REFUSE or found.sha256 != sha256_of(parquet):
        return None
    refused = [f for f in found.findings if f.verdict is Verdict.REFUSE]
    more = f" (and {len(refused) - 1} more)" if len(refused) > 1 else ""
    return f"{refused[0].name}: {refused[0].said}{more}"
