"""A step's metrics of verl-tool's trainer in the words of the engine verl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scout_protocol.records import StopReason, Trace


def step_metrics(data: dict[str, Any], groups: Sequence[Sequence[Trace]], gen_s: float) -> dict[str, Any]:
    """``data``, as the trainer would log it, corrected and completed.

    Args:
        groups: the traces of each group that was trained.
        gen_s: seconds in which they were played, before the trainer's own clock of the step.
    """
    traces = [trace for group in groups for trace in group]
    own = [t.n_policy_tokens or 0 for t in traces]
    rewards = [[float(t.score["total"]) for t in group] for group in groups]
    lengths = {
        "mean": float(np.mean(own)),
        "max": float(max(own)),
        "min": float(min(own)),
        "clip_ratio": float(np.mean([t.stop_reason is StopReason.LENGTH for t in traces])),
    }
    found = dict(data)
    for prefix in ("response_length", "response_length_non_aborted"):
        found |= {f"{prefix}/{name}": value for name, value in lengths.items()}
    found["prompt_length/clip_ratio"] = 0.0  # a prompt that does not fit is refused
    found["scout/sequence_tokens"] = float(
        np.mean([(t.n_policy_tokens or 0) + (t.n_tool_tokens or 0) for t in traces])
    )
    found["scout/trained_policy_tokens"] = float(sum(own))
    found["scout/trained_trajectories"] = len(traces)
    found["scout/zero_variance_group_share"] = float(np.mean([np.ptp(r) == 0.0 for r in rewards]))
    without_s = found["timing_s/step"]
    found["timing_s/gen"] = gen_s
    found["timing_s/step"] = found["perf/time_per_step"] = without_s + gen_s
    found["perf/throughput"] *= without_s / found["timing_s/step"]
    found.pop("timing_per_token_ms/gen", None)
    return found
