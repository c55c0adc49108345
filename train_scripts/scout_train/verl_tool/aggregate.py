"""How a loss is summed over micro-batches, so that the step's gradient does not depend on how they were cut.

verl 0.7.0.dev averages inside each micro-batch and weighs micro-batches by their share of rows
(``loss_scale_factor`` in verl/workers/actor/dp_actor.py). For ``token-mean`` that is not DAPO's mean over all
tokens of the batch, and ``seq-mean-token-sum-norm`` is divided by the number of micro-batches instead of the
number of trajectories. Here each micro-batch returns a value that becomes exact under that same weighting:

    Σ_m rows_m/N · aggregate_m = the aggregate of all N rows

for one update a step, with the counts of this rank's rows. (With several mini-batches a step, the counts are
those of all of them together.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


@dataclass(frozen=True)
class Whole:
    """Counts of the whole batch: rows, rows with at least one trained token, trained tokens."""

    rows: int
    trained_rows: int
    tokens: float

    @classmethod
    def of(cls, mask_BT: torch.Tensor) -> Whole:
        """Count a response mask of shape (rows, response_length)."""
        per_row = mask_BT.sum(-1)
        return cls(len(mask_BT), int((per_row > 0).sum()), float(per_row.sum()))


def aggregate(loss_BT: torch.Tensor, mask_BT: torch.Tensor, mode: str, whole: Whole) -> torch.Tensor:
    """One micro-batch's part of the loss, to be weighed by its share of rows.

    Args:
        loss_BT, mask_BT: per token of the response, shape (rows, response_length).
        mode: verl's ``loss_agg_mode``; the width of the mask is Dr.GRPO's constant length, eq. 3 of
            arXiv:2503.20783.
        whole: of all rows of the step.

    Returns:
        A scalar; 0 where nothing is trained.
    """
    if mode not in MODES:
        raise ValueError(f"loss_agg_mode: {mode}: choose one of {', '.join(MODES)}")
    per_row = (loss_BT * mask_BT).sum(-1)
    if mode == "token-mean":
        total, count = per_row.sum(), whole.tokens
    else:
        if mode == "seq-mean-token-mean":
            per_row = per_row / mask_BT.sum(-1).clamp(min=1)
        elif mode == "seq-mean-token-sum-norm":
            per_row = per_row / mask_BT.shape[-1]
        total, count = per_row.sum(), float(whole.trained_rows)
    return total * (whole.rows / len(mask_BT)) / max(count, 1.0)
