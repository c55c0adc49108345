"""``traces.jsonl``: every rollout of a run as one line, and the running totals of a step."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scout_protocol.records import StopReason, Trace

_ENCODER = msgspec.json.Encoder()


@dataclass
class StepTotals:
    """Sums over the trajectories that one step generated, whether they were trained on or not."""

    trajectories: int = 0
    scored: int = 0
    em: float = 0.0
    searches: int = 0
    turns: int = 0
    policy_tokens: int = 0
    tool_s: float = 0.0
    failed: int = 0  # ended by a defect, see the console log
    stops: Counter[str] = field(default_factory=Counter)

    def add(self, trace: Trace) -> None:
        """Count one trajectory. One that an outage ended has no score and no say about the policy."""
        self.trajectories += 1
        self.stops[trace.stop_reason.value] += 1
        if trace.stop_reason is StopReason.INFRA_ERROR:
            return
        self.scored += 1
        self.em += float(trace.score["em"])
        self.searches += trace.n_searches
        self.turns += trace.n_turns
        self.policy_tokens += trace.n_policy_tokens or 0
        self.tool_s += sum(call.latency_s for call in trace.tool_calls)

    def metrics(self) -> dict[str, float]:
        """``scout/…``; means are over scored trajectories, shares over all. No key stands for "unknown"."""
        found: dict[str, float] = {
            "scout/trajectories": self.trajectories,
            "scout/infra_errors": self.stops[StopReason.INFRA_ERROR.value],
            "scout/failed": self.failed,
        }
        if self.scored:
            found |= {
                "scout/em": self.em / self.scored,
                "scout/searches": self.searches / self.scored,
                "scout/turns": self.turns / self.scored,
                "scout/policy_tokens": self.policy_tokens / self.scored,
                "scout/tool_s": self.tool_s / self.scored,
            }
        if self.trajectories:
            found |= {f"scout/stop/{r.value}": self.stops[r.value] / self.trajectories for r in StopReason}
        return found


class TraceLog:
    """Appends traces to a file and keeps the totals of each training step until they are taken."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("ab")
        self._lock = threading.Lock()
        self._totals: dict[int, StepTotals] = {}
        self.last_failure = ""

    def write(self, trace: Trace, train: bool) -> None:
        """One line, flushed: a killed run loses no finished trajectory."""
        line = _ENCODER.encode(trace) + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            if train:
                self._totals.setdefault(trace.step, StepTotals()).add(trace)

    def count_failure(self, step: int, error: BaseException) -> None:
        """A trajectory that raised: a defect, not an outage."""
        with self._lock:
            self.last_failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            self._totals.setdefault(step, StepTotals()).failed += 1

    def take(self, step: int) -> StepTotals:
        """The totals of a step, once."""
        with self._lock:
            return self._totals.pop(step, StepTotals())

    def close(self) -> None:
        self._file.close()
