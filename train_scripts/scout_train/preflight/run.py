"""All checks by name, in the order of the table; what is skipped is said."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from scout_protocol.errors import UserError
from scout_train.preflight import cluster, data, machine, model_side, nodes, readiness, server
from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, Verdict, refuse, report

Check = Callable[[Facts], Finding | None]
CHECKS: dict[str, Check] = {
    "gold": data.gold,
    "mixed": data.mixed,
    "groups": data.groups,
    "readiness": readiness.readiness,
    "tools": server.tools,
    "nodes": nodes.nodes,
    "proxies": server.proxies,
    "capacity": server.capacity,
    "cores": machine.cores,
    "memory": machine.memory,
    "card-memory": machine.card_memory,
    "disk": machine.disk,
    "shm": machine.shm,
    "files": machine.files,
    "ports": machine.ports,
    "topology": cluster.topology,
    "mask": cluster.mask,
    "learning-rate": cluster.learning_rate,
    "epochs": cluster.epochs,
    "micro-batch": cluster.micro_batch,
    "weight-sync": cluster.weight_sync,
}
NAMES = (*CHECKS, *model_side.NAMES)
MODEL_SIDE_TIMEOUT_S = 180.0


def check_names(names: Sequence[str], option: str) -> None:
    """Raise where a name is no check.

    Raises:
        UserError: naming the checks there are.
    """
    for name in names:
        if name not in NAMES:
            raise UserError(option, name, f"choose among {', '.join(NAMES)}")


def run(facts: Facts, skip: Sequence[str] = (), whole: bool = True) -> list[Finding]:
    """What every check found; one that does not apply to this run says nothing.

    Args:
        whole: False does not wait for the slow checks once a quick one has refused.
    """
    needs_server = ("tool-call", "rollout")
    found: list[Finding] = []
    if "tools" not in skip:  # first: what needs the server would only wait for it
        found.append(_one("tools", facts))
    there = not found or found[0].verdict is not Verdict.REFUSE
    names = [n for n in model_side.NAMES if n not in skip and (there or n not in needs_server)]
    with tempfile.TemporaryDirectory(prefix="scout-preflight-") as folder:
        beside = model_side.start(facts, Path(folder), names) if names else None
        try:
            for name in CHECKS:
                if name in skip or name == "tools" or (name == "capacity" and not there):
                    continue
                if finding := _one(name, facts):
                    found.append(finding)
            refused_already = any(f.verdict is Verdict.REFUSE for f in found)
            if beside is not None and (whole or not refused_already):
                found += beside.findings(MODEL_SIDE_TIMEOUT_S)
        finally:
            if beside is not None:
                beside.close()
    return sorted(found, key=lambda f: NAMES.index(f.name))


def _one(name: str, facts: Facts) -> Finding:
    try:
        return CHECKS[name](facts)  # type: ignore[return-value]
    except UserError as error:
        return refuse(name, f"{error.field}: {error.value}", error.remedy)


def write(findings: Sequence[Finding], skipped: Sequence[str], started: float, path: Path) -> None:
    """The report as JSON.

    Raises:
        UserError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        took_s = time.perf_counter() - started
        path.write_text(json.dumps(report(findings, skipped, took_s), indent=2, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UserError("preflight report", path, f"{error.strerror}: choose a writable folder") from error


def refused(findings: Sequence[Finding]) -> UserError | None:
    """The first refusal as an error that counts the others; None where nothing is refused."""
    bad = [f for f in findings if f.verdict is Verdict.REFUSE]
    if not bad:
        return None
    more = f" (and {len(bad) - 1} more: {', '.join(f.name for f in bad[1:])})" if len(bad) > 1 else ""
    return UserError(f"preflight {bad[0].name}", bad[0].found, f"{bad[0].remedy}{more}")
