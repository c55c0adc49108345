"""Exact match: the outcome that training rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scout_protocol.errors import UserError
from scout_reward.normalise import Normaliser, normalise, normalise_gold


def matched_answer(answer: str, golden_answers: Sequence[str], normaliser: Normaliser = normalise) -> str:
    """The golden answer that the given one equals after normalisation; empty where there is none.

    A golden answer that normalises to nothing ("the", "?") matches no answer: otherwise every answer
    without letters would win that question.
    """
    given = normaliser(answer)
    if given:
        for gold in golden_answers:
            if normalise_gold(gold, normaliser) == given:
                return gold
    return ""


def exact_match(answer: str, golden_answers: Sequence[str], normaliser: Normaliser = normalise) -> float:
    """1.0 if the answer equals one of the golden answers after normalisation, else 0.0."""
    return float(bool(matched_answer(answer, golden_answers, normaliser)))


def accepted_answers(ground_truth: Any, field: str = "ground_truth") -> list[str]:
    """Every accepted answer of a row's ground truth: its targets, then its aliases, each once.

    Args:
        ground_truth: ``{"target": [answers], "aliases": [answers]}`` as in Search-R1's rows, where both are
            one string or a list (or a numpy array, as parquet readers hand them out) and ``aliases`` may be
            absent.

    Raises:
        UserError: another shape, or no answer in it.
    """
    if not isinstance(ground_truth, Mapping) or "target" not in ground_truth:
        raise UserError(field, repr(ground_truth), "must be {'target': [accepted answers]}")
    found: dict[str, None] = {}
    for key in ("target", "aliases"):
        found.update(dict.fromkeys(strings(ground_truth.get(key, ()), f"{field}.{key}")))
    if not found:
        raise UserError(f"{field}.target", "[]", "needs at least one answer")
    return list(found)


def strings(value: Any, field: str) -> list[str]:
    """A list of strings from a list, a tuple or a numpy array.

    Raises:
        UserError: anything else, one lone string included.
    """
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, str) or not isinstance(items, Iterable):
        raise UserError(field, repr(value), "must be a list of strings")
    found = list(items)
    if not all(isinstance(item, str) for item in found):
        raise UserError(field, repr(value), "must be a list of strings")
    return found
