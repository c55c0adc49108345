"""When a warm-up has taught enough, and which of its checkpoints is the one to keep.

Two rules. ``loss``: the validation loss no longer falls. ``format``: rollouts of a checkpoint through the
tool server keep the format, and earn enough where that is asked for. Neither knows what the other does:
copying from the results emerges abruptly, long after the format and often after a plateau of the loss, so a
model made from nothing is better given a fixed number of steps, or ``stop_em`` above 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from scout_sft.history import History
from scout_sft.verl_config import TrainSettings

LOSS, FORMAT = "loss", "format"


def rules(settings: TrainSettings) -> tuple[str, ...]:
    """The rules that are on. ``auto``: none with fixed steps; else ``loss``, and ``format`` with a probe."""
    if settings.stop == "auto":
        if settings.steps:
            return ()
        return (LOSS, FORMAT) if settings.probe_rows else (LOSS,)
    return {"never": (), "loss": (LOSS,), "format": (FORMAT,), "both": (LOSS, FORMAT)}[settings.stop]


def loss_stalled(val: Mapping[int, float], patience: int, min_delta: float) -> bool:
    """Whether the last ``patience`` validations, or more, brought no loss below the best by ``min_delta``.

    Args:
        val: validation loss by step.
        min_delta: share of the best loss that counts as falling.
    """
    best, since = math.inf, 0
    for step in sorted(val):
        if val[step] < best * (1 - min_delta):
            best, since = val[step], 0
        else:
            since += 1
    return since >= patience


def reason_to_stop(
    settings: TrainSettings, history: History, probes: Mapping[int, Mapping[str, Any]]
) -> str | None:
    """The rule that says so, or None."""
    on = rules(settings)
    if FORMAT in on and probes:
        last = probes[max(probes)]
        if last["format_adherence"] >= settings.stop_format and last["pass_at_1"] >= settings.stop_em:
            return FORMAT
    if LOSS in on and loss_stalled(history.val, settings.stop_patience, settings.stop_min_delta):
        return LOSS
    return None


def choose(
    settings: TrainSettings,
    steps: Sequence[int],
    history: History,
    probes: Mapping[int, Mapping[str, Any]],
) -> tuple[int, str]:
    """The checkpoint to export and the figure that chose it; the earlier one of equals.

    ``last``, or the best: by pass@1 of the probe's rollouts, then their format, where checkpoints were
    probed; else by validation loss. ``auto`` is the best where a rule may stop the run, the last where steps
    are fixed.
    """
    keep = settings.keep if settings.keep != "auto" else ("best" if rules(settings) else "last")
    probed = [step for step in steps if step in probes]
    if keep == "best" and probed:
        return min(
            probed,
            key=lambda s: (-probes[s]["pass_at_1"], -probes[s]["format_adherence"], s),
        ), "pass@1 of rollouts, then their format"
    best = history.best(steps) if keep == "best" else None
    return (best, "validation loss") if best is not None else (steps[-1], "last")
