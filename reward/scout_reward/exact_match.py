"""Exact match: the outcome that training rewards."""

from __future__ import annotations

from collections.abc import Sequence

from scout_reward.normalise import normalise


def exact_match(answer: str, golden_answers: Sequence[str]) -> float:
    """1.0 if the answer equals one of the golden answers after normalisation, else 0.0.

    A golden answer that normalises to nothing ("the", "?") matches no answer: otherwise every answer
    without letters would win that question.
    """
    given = normalise(answer)
    return float(bool(given) and any(given == normalise(gold) for gold in golden_answers))
