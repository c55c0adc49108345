"""What a warm-up has measured so far, from the files that its trainer leaves."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scout_sft.launch import MetricsTail
from scout_sft.run_folder import replace

PROBES = "probes.jsonl"


@dataclass(slots=True)
class History:
    """Metrics by step; of a step that was done twice, the later counts."""

    train: dict[int, dict[str, float]] = field(default_factory=dict)
    val: dict[int, float] = field(default_factory=dict)

    def add(self, step: int, metrics: dict[str, Any]) -> None:
        """Take in one line of verl's file logger."""
        if "val/loss" in metrics:
            self.val[step] = float(metrics["val/loss"])
        if "train/loss" in metrics:
            self.train[step] = {
                "loss": float(metrics["train/loss"]),
                "grad_norm": float(metrics["train/grad_norm"]),
                # verl logs the rate after its scheduler has moved on
                "next_lr": float(metrics["train/lr"]),
                "tokens": float(metrics["train/global_tokens"]),
            }

    def best(self, steps: Sequence[int]) -> int | None:
        """Of these steps the one with the lowest validation loss."""
        known = [s for s in steps if math.isfinite(self.val.get(s, math.inf))]
        return min(known, key=lambda s: (self.val[s], s)) if known else None

    def write(self, path: Path) -> None:
        """One JSON line per step: step, loss, grad_norm, next_lr, tokens, and val_loss where there is one."""
        lines = []
        for step in sorted(self.train.keys() | self.val.keys()):
            item: dict[str, Any] = {"step": step, **self.train.get(step, {})}
            if step in self.val:
                item["val_loss"] = self.val[step]
            lines.append(json.dumps(item))
        replace(path, "".join(line + "\n" for line in lines))


def past(logs: Path) -> History:
    """The metrics of earlier attempts."""
    history = History()
    attempts = sorted(logs.glob("attempt-*.jsonl"), key=lambda p: int(p.stem.partition("-")[2]))
    for attempt in attempts:
        for step, data in MetricsTail(attempt).new():
            history.add(step, data)
    return history


def read_probes(out: Path) -> dict[int, dict[str, Any]]:
    """The probes of this run so far, ``{step: figures}``; a torn last line is probed again."""
    file = out / PROBES
    if not file.is_file():
        return {}
    block = file.read_bytes()
    lines = [json.loads(line) for line in block[: block.rfind(b"\n") + 1].splitlines()]
    return {int(line["step"]): line for line in lines}


def add_probe(out: Path, step: int, figures: dict[str, Any]) -> None:
    """Write down the probe of a checkpoint."""
    known = read_probes(out) | {step: {"step": step, **figures}}
    replace(out / PROBES, "".join(json.dumps(known[s]) + "\n" for s in sorted(known)))
