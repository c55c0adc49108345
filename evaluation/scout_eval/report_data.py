"""What a report is made of, read from a run's folder. What is not there is named, never filled in."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scout_eval.summary import SUMMARY, Summary, read_summary
from scout_protocol.errors import UserError

STAGES = (("base", "before SFT"), ("sft", "after SFT"), ("grpo", "after GRPO"), ("dapo", "after DAPO"))
CONTROLS = ("blank", "shuffled")
ALGORITHMS = ("grpo", "dapo")


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's evaluation and its controls; None where it was not run."""

    name: str
    label: str
    summary: Summary | None
    controls: dict[str, Summary | None]

    def hops(self) -> list[str]:
        """Numbers of hops that this stage's questions have, ascending."""
        return list(self.summary.metrics.by.get("hops", {})) if self.summary else []


@dataclass(frozen=True, slots=True)
class Curve:
    """The metrics of one training run. ``steps[i]`` holds the finite numbers of step ``at[i]``."""

    name: str
    at: list[int]
    steps: list[dict[str, float]]

    def series(self, key: str) -> list[tuple[int, float]]:
        """(step, value) wherever the metric was logged."""
        return [(at, values[key]) for at, values in zip(self.at, self.steps, strict=True) if key in values]


@dataclass(frozen=True, slots=True)
class StageTime:
    """How long one stage of the pipeline took; None where it was not recorded."""

    name: str
    wall_s: float | None
    cpu_s: float | None
    done_at: str


@dataclass(slots=True)
class RunData:
    """Everything that was found in a run's folder, and a list of what was not."""

    folder: Path
    stages: list[Stage]
    curves: dict[str, Curve]
    times: list[StageTime]
    missing: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def hops(self) -> list[str]:
        """Every number of hops that some stage's questions have."""
        return sorted({hops for stage in self.stages for hops in stage.hops()}, key=lambda h: (len(h), h))

    def summaries(self) -> list[Summary]:
        """The stages' summaries without the controls, in order."""
        return [stage.summary for stage in self.stages if stage.summary is not None]


def load_run(folder: Path) -> RunData:
    """Read a run's folder.

    Reads ``eval/STAGE[.CONTROL]/summary.json``, ``grpo|dapo/metrics.jsonl`` and ``stages.json``.

    Raises:
        UserError: the folder is missing or holds none of these.
    """
    if not folder.is_dir():
        raise UserError("run", folder, "no such folder: give the folder of a run, e.g. runs/quickstart")
    run = RunData(folder, [], {}, [])
    for name, label in STAGES:
        summary = _summary(run, name)
        controls = {c: _summary(run, f"{name}.{c}") for c in CONTROLS}
        run.stages.append(Stage(name, label, summary, controls))
    for name in ALGORITHMS:
        run.curves[name] = _curve(run, name)
    run.times = _times(run)
    anything = run.times or any(c.at for c in run.curves.values())
    if not anything and not any(s.summary or any(s.controls.values()) for s in run.stages):
        raise UserError(
            "run", folder, "holds no evaluation of base, sft, grpo or dapo and no training metrics"
        )
    if len({s.identity.rows_sha256 for s in run.summaries()}) > 1:
        run.warnings.append("The stages were evaluated on different rows: their numbers do not compare.")
    if len({s.n_rows for s in run.summaries()}) > 1:
        run.warnings.append("The stages were evaluated on different numbers of rows.")
    return run


def _summary(run: RunData, name: str) -> Summary | None:
    folder = run.folder / "eval" / name
    if not (folder / SUMMARY).is_file():
        run.missing.append(f"eval/{name}/{SUMMARY}")
        return None
    try:
        return read_summary(folder)
    except UserError as error:
        run.missing.append(f"eval/{name}/{SUMMARY} (unreadable: {error.value})")
        return None


def _curve(run: RunData, name: str) -> Curve:
    curve = read_curve(run.folder / name / "metrics.jsonl", name, run.warnings)
    if curve is None:
        run.missing.append(f"{name}/metrics.jsonl")
        return Curve(name, [], [])
    return curve


def read_curve(path: Path, name: str, warnings: list[str]) -> Curve | None:
    """The steps of one ``metrics.jsonl``, ascending; None without a file. Bad lines become warnings."""
    found: dict[int, dict[str, float]] = {}
    if not path.is_file():
        return None
    n_bad = 0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for line in lines:
        values = _numbers(line)
        if values is None:
            n_bad += 1
        elif values:
            # A run that resumed from a checkpoint wrote some steps twice: the later line is what counts.
            found.setdefault(int(values["step"]), {}).update(values)
    if n_bad:
        warnings.append(f"{name}/metrics.jsonl: {n_bad} of {len(lines)} lines were not readable.")
    steps = sorted(found)
    return Curve(name, steps, [found[step] for step in steps])


def _numbers(line: str) -> dict[str, float] | None:
    """The finite numbers of one line; None where the line is no step. verl nests them under "data"."""
    if not line.strip():
        return {}
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    nested = record.get("data")
    flat: dict[str, Any] = {**record, **nested} if isinstance(nested, dict) else record
    values = {
        key: float(value)
        for key, value in flat.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    }
    return values if "step" in values else None


def _times(run: RunData) -> list[StageTime]:
    path = run.folder / "stages.json"
    if not path.is_file():
        run.missing.append("stages.json")
        return []
    try:
        record = json.loads(path.read_bytes())
        items = list(record.items())
        return [
            StageTime(
                str(name), _time(facts, "wall_s"), _time(facts, "cpu_s"), str(facts.get("done_at") or "")
            )
            for name, facts in items
        ]
    except (ValueError, AttributeError) as error:
        run.missing.append(f"stages.json (unreadable: {error})")
        return []


def _time(facts: dict[str, Any], key: str) -> float | None:
    value = facts.get(key)
    return float(value) if isinstance(value, (int, float)) else None
