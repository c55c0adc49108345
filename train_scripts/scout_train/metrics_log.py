"""``metrics.jsonl``: one object per step. verl's ``file`` logger truncates on resume; this one appends."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def plain(value: Any) -> float | int | str | bool | None:
    """A metric as JSON has it: numpy and torch scalars become numbers, NaN and infinity become null."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return str(value)


class MetricsLog:
    """A backend for verl's `Tracking`: one line per step, on disk before ``after`` is called.

    Args:
        path: the file; appended to.
        after: called with the step once its line is safe. The checkpoint of a step is written here, so that
            no checkpoint ever exists without the line of its step.
    """

    def __init__(self, path: Path, after: Callable[[int], None]) -> None:
        self._file = path.open("a", encoding="utf-8")
        self._after = after

    def log(self, data: dict[str, Any], step: int) -> None:
        line = {"step": step} | {key: plain(value) for key, value in sorted(data.items())}
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self._after(step)

    def close(self) -> None:
        self._file.close()
