"""What is on disk of an earlier run, and how to go on so that nothing shows that it was interrupted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

TRACKER = "latest_checkpointed_iteration.txt"  # verl's


def step_of(folder: Path) -> int:
    """The step in ``global_step_<n>``; -1 for anything else."""
    name = folder.name.removeprefix("global_step_")
    return int(name) if folder.name.startswith("global_step_") and name.isdigit() else -1


def checkpoints(ckpt_dir: Path) -> list[Path]:
    """Complete checkpoints, oldest first. verl writes ``data.pt`` last, so its presence marks a whole one."""
    found = [p for p in ckpt_dir.glob("global_step_*") if step_of(p) >= 0 and (p / "data.pt").is_file()]
    return sorted(found, key=step_of)


def old_checkpoints(ckpt_dir: Path, keep: int) -> list[Path]:
    """Those beyond the newest ``keep`` (at least one is kept)."""
    return checkpoints(ckpt_dir)[: -max(keep, 1)]


def repair(ckpt_dir: Path) -> int:
    """Make verl's tracker name a complete checkpoint; remove half-written ones. Returns its step, or 0.

    verl writes the tracker without care for a crash in between: it may be empty, or name a step whose folder
    is not whole.
    """
    if not ckpt_dir.is_dir():
        return 0
    whole = checkpoints(ckpt_dir)
    tracker = ckpt_dir / TRACKER
    try:
        named = int(tracker.read_text())
    except (OSError, ValueError):
        named = -1
    steps = [step_of(p) for p in whole]
    if named not in steps:
        # Folders newer than the tracker are whole too (data.pt is there): go on from the newest.
        named = steps[-1] if steps else 0
    for folder in ckpt_dir.glob("global_step_*"):
        if step_of(folder) > named or folder not in whole:
            shutil.rmtree(folder, ignore_errors=True)
    if named:
        replace_text(tracker, str(named))
    elif tracker.exists():
        tracker.unlink()
    return named


def trim(path: Path, last_step: int) -> int:
    """Drop the lines of steps after ``last_step``, and a line that was cut off. Returns how many went."""
    if not path.is_file():
        return 0
    temporary = path.with_name(f".{path.name}.tmp")
    dropped = 0
    with path.open("rb") as source, temporary.open("wb") as target:
        for line in source:
            if _step(line) is not None and _step(line) <= last_step:  # type: ignore[operator]
                target.write(line)
            else:
                dropped += 1
    temporary.replace(path)
    return dropped


def _step(line: bytes) -> int | None:
    if not line.endswith(b"\n"):
        return None
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def last_logged_step(metrics_path: Path) -> int:
    """The step of the last whole line of ``metrics.jsonl``; 0 without one."""
    if not metrics_path.is_file():
        return 0
    with metrics_path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 65536))
        steps = [s for s in map(_step, file.read().splitlines(keepends=True)) if s is not None]
    return steps[-1] if steps else 0


def replace_text(path: Path, text: str) -> None:
    """Write a small file, all or nothing."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def changed_keys(before: dict[str, Any], now: dict[str, Any], ignore: tuple[str, ...]) -> list[str]:
    """Dotted keys whose values differ between two nested configurations, except those under ``ignore``."""
    a, b = _flat(before), _flat(now)
    keys = sorted(k for k in a.keys() | b.keys() if a.get(k) != b.get(k))
    return [k for k in keys if not any(k == i or k.startswith(i + ".") for i in ignore)]


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(tree, dict) and tree:
        return {k: v for key, sub in tree.items() for k, v in _flat(sub, f"{prefix}{key}.").items()}
    return {prefix.rstrip("."): tree}
