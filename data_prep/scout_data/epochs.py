"""What a training run will see of a file: steps, and how often each question, by source."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import msgspec

from scout_data.split import question_key
from scout_protocol.errors import UserError


class Seen(msgspec.Struct, frozen=True):
    """One group's part: rows, different questions, and how often one of those is seen (mean, most)."""

    group: str
    rows: int
    questions: int
    share: float
    seen_mean: float
    seen_most: int


class Plan(msgspec.Struct, frozen=True):
    """A run over ``rows`` rows.

    ``steps`` counts a last, smaller batch; ``full_steps`` is what a loader does that drops it in every epoch,
    as verl's does: ``dropped`` rows of each epoch, others each time, are then not seen.
    """

    rows: int
    epochs: int
    batch: int
    steps: int
    full_steps: int
    dropped: int
    rollouts: int
    groups: list[Seen]


def plan_epochs(
    questions: Sequence[str], names: Sequence[str], epochs: int, batch: int, rollouts_per_question: int = 1
) -> Plan:
    """The plan for these rows.

    Raises:
        UserError: a number below 1, or a batch larger than the file.
    """
    for option, value in (("--epochs", epochs), ("--batch", batch), ("--n", rollouts_per_question)):
        if value < 1:
            raise UserError(option, value, "must be at least 1")
    if batch > len(questions):
        raise UserError("--batch", batch, f"there are only {len(questions)} rows")
    by_group: dict[str, Counter[str]] = {}
    for question, name in zip(questions, names, strict=True):
        by_group.setdefault(name, Counter())[question_key(question)] += 1
    seen = []
    for name, counts in sorted(by_group.items()):
        rows = counts.total()
        seen.append(
            Seen(
                group=name,
                rows=rows,
                questions=len(counts),
                share=rows / len(questions),
                seen_mean=epochs * rows / len(counts),
                seen_most=epochs * max(counts.values()),
            )
        )
    return Plan(
        rows=len(questions),
        epochs=epochs,
        batch=batch,
        steps=math.ceil(len(questions) * epochs / batch),
        full_steps=len(questions) // batch * epochs,
        dropped=len(questions) % batch,
        rollouts=len(questions) * epochs * rollouts_per_question,
        groups=seen,
    )
