"""``traces.jsonl``: every rollout of a run as one line, and the running totals of a step."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from scout_protocol.records import StopReason, Trace

_ENCODER = msgspec.json.Encoder()


def lost_why(trace: Trace) -> str | None:
    """Why a trajectory cannot be trained, e.g. ``connection:ClientConnectorError``; None if it can."""
    if trace.stop_reason is StopReason.INFRA_ERROR:
        kinds = [call.error_kind for call in trace.tool_calls if call.infra_error]
        return str((kinds or [trace.extra.get("policy_error", "infra_error")])[-1])
    if trace.extra.get("drifted_tokens"):
        return "DriftError"
    return None if trace.n_policy_tokens else f"{trace.stop_reason.value} before the first turn"


@dataclass
class StepTotals:
    """Sums over the trajectories that one step generated, whether they were trained on or not."""

    trajectories: int = 0
    scored: int = 0
    em: float = 0.0
    reward: float = 0.0
    format: float = 0.0
    shaping: Counter[str] = field(default_factory=Counter)  # sum of each term that is switched on; at most 0
    searches: int = 0
    turns: int = 0
    policy_tokens: int = 0
    tool_s: float = 0.0
    failed: int = 0  # ended by a defect, see the console log
    drifted_tokens: int = 0  # of trajectories refused because they held tokens that were not sampled
    masked: int = 0
    forced: int = 0
    cut_searches: int = 0
    tokens_after_stop: int = 0
    stops: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)  # why trajectories cannot be trained

    def add(self, trace: Trace) -> None:
        """Count one trajectory. One that an outage ended has no score and no say about the policy."""
        self.trajectories += 1
        self.stops[trace.stop_reason.value] += 1
        self.tokens_after_stop += trace.extra.get("tokens_after_stop", 0)
        self.cut_searches += trace.extra.get("cut_searches", 0)
        self.forced += trace.extra.get("forced_answer", False)
        self.masked += trace.extra.get("masked", False)
        if (why := lost_why(trace)) is not None:
            self.lost[why] += 1
        if n_drifted := trace.extra.get("drifted_tokens"):  # the engine verl raises: count_failure
            self.failed += 1
            self.drifted_tokens += n_drifted
            return
        if trace.stop_reason is StopReason.INFRA_ERROR:
            return
        self.scored += 1
        self.em += float(trace.score["em"])
        self.reward += float(trace.score["total"])
        self.format += float(trace.score["format"])
        for term, value in trace.score["shaping"].items():
            self.shaping[term] += value
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
            "scout/retokenisation_drift": self.drifted_tokens,
            "scout/tokens_after_stop": self.tokens_after_stop,
            "scout/cut_searches": self.cut_searches,
            "scout/forced_answers": self.forced,
            "scout/masked_overlong": self.masked,
        }
        if self.scored:
            found |= {
                "scout/em": self.em / self.scored,
                "scout/reward": self.reward / self.scored,
                "scout/format": self.format / self.scored,
                **{f"scout/shaping/{term}": total / self.scored for term, total in self.shaping.items()},
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
        self._last_step = 0
        self.last_failure = ""

    def write(self, trace: Trace, train: bool) -> None:
        """One line, flushed: a killed run loses no finished trajectory."""
        line = _ENCODER.encode(trace) + b"\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            if train:
                self._of(trace.step).add(trace)

    def _of(self, step: int) -> StepTotals:
        self._last_step = max(step, self._last_step)
        return self._totals.setdefault(step, StepTotals())

    def count_failure(self, step: int, error: BaseException, n_drifted: int = 0) -> None:
        """A trajectory that raised: a defect, not an outage. ``n_drifted``: tokens that were not sampled."""
        with self._lock:
            self.last_failure = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            totals = self._of(step)
            totals.failed += 1
            totals.drifted_tokens += n_drifted
            totals.lost[type(error).__name__] += 1

    def why_lost(self) -> str:
        """The causes for which trajectories of the newest step cannot be trained, e.g. ``http_503 x 12``."""
        with self._lock:
            lost = self._totals.get(self._last_step, StepTotals()).lost
        return ", ".join(f"{why} x {n}" for why, n in lost.most_common(3))

    def take(self, step: int) -> StepTotals:
        """The totals of a step, once."""
        with self._lock:
            return self._totals.pop(step, StepTotals())

    def close(self) -> None:
        self._file.close()
