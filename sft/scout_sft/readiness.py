"""Is a warmed-up model ready for reinforcement learning? Findings on the figures of its rollouts, a verdict.

``more_sft``: it does not speak the format, does not search, or earns too little for a gradient to come from.
``too_far``: it speaks the format but always says the same. Groups of equal rewards teach nothing, and more
imitation does not bring diversity back; so where both are found, ``too_far`` is the verdict unless the format
itself is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scout_protocol.errors import UserError

SCHEMA = "scout.readiness/1"
READY, MORE_SFT, TOO_FAR = "ready", "more_sft", "too_far"


@dataclass(frozen=True, slots=True)
class Limits:
    """What is asked of the figures; each is a share in [0, 1] but ``min_entropy_nats``.

    ``min_rewarded``: right answers in the first batch; a fifth is what practitioners ask of a warm-up before
    they start (format alone earns the same for everybody and is no signal). ``min_mixed``: groups whose
    rewards differ. ``max_same_actions``: groups whose rollouts all do the very same; the quickstart's warm-up
    has half of them so, and learns.
    """

    min_format: float = 0.95
    min_searching: float = 0.5
    min_rewarded: float = 0.2
    min_mixed: float = 0.2
    max_same_actions: float = 0.8
    min_entropy_nats: float = 0.005
    max_language_mixing: float = 0.05
    max_cut: float = 0.1

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if not 0 <= value <= (10 if name == "min_entropy_nats" else 1):
                raise UserError(f"--{name.replace('_', '-')}", value, "must be between 0 and 1")


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure against its limit. ``says`` is what a miss of it means: a verdict, or ``warn``."""

    name: str
    value: float | None
    limit: float
    at_least: bool
    says: str
    remedy: str

    @property
    def ok(self) -> bool:
        """Whether the limit is kept; a figure that nobody knows keeps it."""
        if self.value is None:
            return True
        return self.value >= self.limit if self.at_least else self.value <= self.limit


def findings(figures: Mapping[str, Any], limits: Limits) -> list[Finding]:
    """Every figure that has a limit, whether kept or not."""
    few = "train longer, or on more demonstrations of these questions"
    flat = "take an earlier checkpoint, or fewer epochs"
    uniform_right = figures["all_right_group_share"] > figures["all_wrong_group_share"]
    return [
        Finding("format_adherence", figures["format_adherence"], limits.min_format, True, MORE_SFT, few),
        Finding("searching_share", figures["searching_share"], limits.min_searching, True, MORE_SFT, few),
        Finding(
            "first_batch_rewarded_share",
            figures["first_batch_rewarded_share"],
            limits.min_rewarded,
            True,
            MORE_SFT,
            few,
        ),
        Finding(
            "mixed_group_share",
            figures["mixed_group_share"],
            limits.min_mixed,
            True,
            TOO_FAR if uniform_right else MORE_SFT,
            "harder questions: most groups are all right" if uniform_right else few,
        ),
        Finding(
            "same_action_group_share",
            figures["same_action_group_share"],
            limits.max_same_actions,
            False,
            TOO_FAR,
            flat,
        ),
        Finding("entropy_nats", figures["entropy_nats"], limits.min_entropy_nats, True, TOO_FAR, flat),
        Finding(
            "language_mixing_share",
            figures["language_mixing_share"],
            limits.max_language_mixing,
            False,
            "warn",
            "look at the thoughts: demonstrations in one language",
        ),
        Finding(
            "cut_share", figures["cut_share"], limits.max_cut, False, "warn", "raise the limits of an episode"
        ),
    ]


def verdict(found: list[Finding]) -> str:
    """``more_sft`` where the format is missed; else what the worst miss says, ``too_far`` first."""
    missed = [finding for finding in found if not finding.ok]
    if any(finding.name == "format_adherence" for finding in missed):
        return MORE_SFT
    for name in (TOO_FAR, MORE_SFT):
        if any(finding.says == name for finding in missed):
            return name
    return READY
