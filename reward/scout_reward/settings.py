"""What a reward may be told. The default is the outcome alone; every shaping term is off."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from scout_protocol.errors import UserError
from scout_reward.normalise import get_normaliser

CHOICES = {
    "format_schedule": ("constant", "linear", "cosine"),
    "answer_tags": ("divide", "search_r1"),
    "outcome": ("em", "f1"),
}


@dataclass(frozen=True, slots=True)
class RewardSettings:
    """All settings of a reward. Penalties are given as positive numbers and subtracted.

    Attributes:
        format_score: reward of a closed answer that is wrong, in [0, 1).
        format_schedule: ``constant``, or ``linear`` or ``cosine`` from ``format_score`` at step 0 down to
            ``format_end`` at step ``format_steps`` and after it.
        answer_tags: what more than one answer costs: ``divide`` by the number of answers closed, or
            ``search_r1``: a right answer counts a quarter where more than 10 tags were opened or closed.
        normaliser: ``search_r1`` or ``folded``, see `normalise`.
        outcome: ``em`` or ``f1``.
        step_penalty: per search.
        quadratic_step_penalty: times the square of the number of searches.
        duplicate_query_penalty: per query whose ROUGE-L with an earlier one is at least
            ``duplicate_query_rouge_l``.
        overlong_penalty: weight of DAPO's Eq. 13 (arXiv:2503.14476) on the policy's own tokens, with
            L_max = ``overlong_max_tokens`` and L_cache = ``overlong_buffer_tokens``.
        no_search_penalty: for a trajectory without a search.
        no_evidence_penalty: for an answer that stands in no observation (yes and no are exempt).

    Raises:
        UserError: naming the setting that cannot be used.
    """

    format_score: float = 0.1
    format_schedule: str = "constant"
    format_end: float = 0.0
    format_steps: int = 0
    answer_tags: str = "divide"
    normaliser: str = "search_r1"
    outcome: str = "em"
    step_penalty: float = 0.0
    quadratic_step_penalty: float = 0.0
    duplicate_query_penalty: float = 0.0
    duplicate_query_rouge_l: float = 0.8
    overlong_penalty: float = 0.0
    overlong_max_tokens: int = 0
    overlong_buffer_tokens: int = 0
    no_search_penalty: float = 0.0
    no_evidence_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise UserError(name, getattr(self, name), f"choose one of {', '.join(choices)}")
        get_normaliser(self.normaliser)
        if not 0.0 <= self.format_score < 1.0:
            raise UserError(
                "format_score", self.format_score, "must be at least 0 and below 1, what a right answer earns"
            )
        if self.format_schedule != "constant":
            if self.format_steps < 1:
                raise UserError("format_steps", self.format_steps, "a schedule needs at least 1 step")
            if not 0.0 <= self.format_end <= self.format_score:
                raise UserError("format_end", self.format_end, f"must be in [0, {self.format_score}]")
        for name in PENALTIES:
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0.0):
                raise UserError(name, value, "must be 0 (off) or a positive number, which is subtracted")
        if not 0.0 < self.duplicate_query_rouge_l <= 1.0:
            raise UserError("duplicate_query_rouge_l", self.duplicate_query_rouge_l, "must be in (0, 1]")
        if self.overlong_penalty and not 0 < self.overlong_buffer_tokens <= self.overlong_max_tokens:
            raise UserError(
                "overlong_buffer_tokens",
                self.overlong_buffer_tokens,
                f"must be from 1 to overlong_max_tokens ({self.overlong_max_tokens})",
            )

    def format_at(self, step: int) -> float:
        """The reward of a wrong answer at a training step."""
        if self.format_schedule == "constant":
            return self.format_score
        done = min(max(step, 0) / self.format_steps, 1.0)
        if self.format_schedule == "cosine":
            done = (1.0 - math.cos(math.pi * done)) / 2.0
        return self.format_score + (self.format_end - self.format_score) * done

    def changed(self) -> dict[str, Any]:
        """What differs from the defaults, by name."""
        return {f.name: v for f in fields(self) if (v := getattr(self, f.name)) != f.default}

    def unshaped(self) -> RewardSettings:
        """The same tiers without any shaping term."""
        return replace(self, **dict.fromkeys(PENALTIES, 0.0))  # type: ignore[arg-type]


PENALTIES = (
    "step_penalty",
    "quadratic_step_penalty",
    "duplicate_query_penalty",
    "overlong_penalty",
    "no_search_penalty",
    "no_evidence_penalty",
)


def parse_settings(assignments: Iterable[str], base: RewardSettings | None = None) -> RewardSettings:
    """Settings from ``name=value`` texts, over those of ``base``, or the defaults.

    Raises:
        UserError: an unknown name, or a value of the wrong type or out of range.
    """
    types: dict[str, type] = {f.name: type(f.default) for f in fields(RewardSettings)}
    found: dict[str, Any] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign or name not in types:
            raise UserError(text, "no such setting", f"use name=value with one of {', '.join(types)}")
        try:
            found[name] = types[name](value)
        except ValueError as error:
            raise UserError(name, value, f"must be a number ({types[name].__name__})") from error
    return replace(base or DEFAULTS, **found)


DEFAULTS = RewardSettings()
