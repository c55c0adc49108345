"""The record of one evaluation on disk: ``run.json`` says what was asked, ``summary.json`` what came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from scout_eval.metrics import Metrics
from scout_protocol.errors import UserError

SUMMARY, TRACES, IDENTITY = "summary.json", "traces.jsonl", "run.json"


class Identity(msgspec.Struct, frozen=True):
    """What must be the same for traces to belong to one evaluation."""

    stage: str
    control: str
    policy: str  # with a hash of local weights
    rows_sha256: str
    seed: int
    temperature: float
    settings: dict[str, Any]
    prompt_sha256: str
    batch_size: int | None = None  # of a local model: in its last bits a result depends on it
    samples: int = 1
    retriever: dict[str, Any] = {}  # what the tool server says about itself
    reward: dict[str, Any] = {}  # settings of the reward that are not the defaults


class Summary(msgspec.Struct):
    """One finished evaluation."""

    identity: Identity
    metrics: Metrics
    rows: str
    n_rows: int
    tools: str
    model: str
    finished_at: str  # ISO 8601, UTC
    wall_s: float  # of the last process; a resumed evaluation took longer
    cpu_s: float
    n_resumed: int  # trajectories taken over from an earlier, interrupted process
    commit: str | None
    versions: dict[str, str]


def write_json(path: Path, value: Any) -> None:
    """Write an object as indented JSON, all or nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def read_summary(folder: Path) -> Summary:
    """The summary of an evaluation folder.

    Raises:
        UserError: there is none, or it is of another version.
    """
    path = folder / SUMMARY
    if not path.is_file():
        raise UserError("evaluation", folder, f"has no {SUMMARY}: the evaluation has not finished")
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            str(path), error, "was written by another version: run the evaluation again"
        ) from error


def _flat(identity: Identity) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.structs.asdict(identity)
    facts |= facts.pop("settings")
    for part in ("retriever", "reward"):
        facts |= {f"{part} {name}": value for name, value in facts.pop(part).items()}
    return facts


def check_identity(folder: Path, identity: Identity) -> None:
    """Claim a folder for one evaluation, or make sure that it already belongs to this one.

    Raises:
        UserError: it belongs to another, naming the first difference.
    """
    path = folder / IDENTITY
    if not path.is_file():
        write_json(path, identity)
        return
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Identity)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(str(path), error, "is damaged: choose another --out or remove the folder") from error
    theirs, ours = _flat(found), _flat(identity)
    for name in sorted(theirs.keys() | ours.keys()):
        old, new = theirs.get(name), ours.get(name)
        if old != new:
            raise UserError(
                "out",
                folder,
                f"holds an evaluation with another {name} ({old} there, {new} now): "
                "choose another --out or remove the folder",
            )
