"""Checkpoints of a warm-up: which there are and which to keep."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

# verl writes this file last, so a checkpoint cut off by a kill is never the one it names.
TRACKER = "latest_checkpointed_iteration.txt"
KEEP_LATEST = 2


def latest_step(checkpoints: Path) -> int:
    """The step of the last complete checkpoint; 0 where there is none."""
    tracker = checkpoints / TRACKER
    if not tracker.is_file():
        return 0
    text = tracker.read_text(encoding="utf-8").strip()
    return int(text) if text.isdigit() else 0


def steps_on_disk(checkpoints: Path) -> list[int]:
    """Steps of the complete checkpoints, in order."""
    last = latest_step(checkpoints)
    found = [re.fullmatch(r"global_step_(\d+)", p.name) for p in checkpoints.glob("global_step_*")]
    return sorted(step for step in (int(m.group(1)) for m in found if m) if step <= last)


def prune(checkpoints: Path, best: int | None) -> None:
    """Remove all complete checkpoints but the latest two and the best one."""
    for step in steps_on_disk(checkpoints)[:-KEEP_LATEST]:
        if step != best:
            shutil.rmtree(checkpoints / f"global_step_{step}", ignore_errors=True)
