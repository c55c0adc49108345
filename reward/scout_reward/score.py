"""One trajectory, one score, all its parts. Reads only what the policy itself wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scout_protocol.dialect import SEARCH_R1, Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import StopReason, Trace
from scout_reward.entity import is_single_entity
from scout_reward.exact_match import matched_answer
from scout_reward.f1 import f1
from scout_reward.normalise import get_normaliser
from scout_reward.reading import Reading, read_trace
from scout_reward.settings import DEFAULTS, RewardSettings
from scout_reward.shaping import shaping
from scout_reward.turns import read_turns

# Search-R1 (verl/utils/reward_score/qa_em.py): a right answer among more than 10 tags counts a quarter.
_SEARCH_R1_TAGS, _SEARCH_R1_SHARE = 10, 0.25


class Score(msgspec.Struct, frozen=True):
    """The parts of one score.

    Attributes:
        total: the reward: the tier, divided where the policy wrote several answers, plus the shaping terms.
        em: 1.0 if the answer is right, else 0.0.
        f1: best token F1 over the golden answers, in [0, 1]; in ``total`` only where it is the outcome.
        format: 1.0 if the policy closed an answer of its own, else 0.0.
        n_answers: answers closed in the policy's text.
        answer: the answer that was read; empty without one.
        why: one clause for the reader.
        n_searches: searches that the policy closed.
        single: 1.0 if the answer names one thing, 0.0 if it lists candidates or there is none.
        matched: the golden answer that the answer equals; empty where it is wrong.
        shaping: each term that is switched on, by name; all at most 0.
    """

    total: float
    em: float
    f1: float
    format: float
    n_answers: int
    answer: str
    why: str
    n_searches: int = 0
    single: float = 0.0
    matched: str = ""
    shaping: dict[str, float] = {}

    def as_dict(self) -> dict[str, Any]:
        """The parts as plain values, for traces."""
        return msgspec.structs.asdict(self)

    def as_metrics(self) -> dict[str, float]:
        """The parts that are numbers, with the same keys for the same settings; ``acc`` is ``em``."""
        return {
            "acc": self.em,
            "em": self.em,
            "f1": self.f1,
            "format": self.format,
            "n_answers": float(self.n_answers),
            "single": self.single,
            **{f"shaping_{name}": value for name, value in self.shaping.items()},
        }


def score(
    said: Reading | Sequence[str],
    golden_answers: Sequence[str],
    dialect: Dialect = SEARCH_R1,
    settings: RewardSettings = DEFAULTS,
    step: int = 0,
) -> Score:
    """Score one trajectory.

    Args:
        said: who wrote what, or the policy's own texts in order; never prompt text.
        golden_answers: every accepted answer, aliases included.
        dialect: whose tags count.
        step: of training; read by a decaying format score.

    Raises:
        UserError: a lone string where a sequence is needed, no golden answers, or a term that needs what the
            reading does not hold.
    """
    for name, value in (("policy_texts", said), ("golden_answers", golden_answers)):
        if isinstance(value, str):
            raise UserError(name, value, "must be a list of strings, not one string")
    if not len(golden_answers):
        raise UserError("golden_answers", "[]", "needs at least one answer")
    reading = said if isinstance(said, Reading) else Reading(said)
    turns = read_turns(reading.policy_texts, dialect)
    answer = turns.answer.text
    terms = shaping(settings, reading, turns.queries, answer)
    extra = sum(terms.values(), 0.0)
    n_searches = len(turns.queries)
    if not answer:
        return Score(extra, 0.0, 0.0, 0.0, turns.n_answers, "", turns.answer.why, n_searches, shaping=terms)

    normaliser = get_normaliser(settings.normaliser)
    matched = matched_answer(answer, golden_answers, normaliser)
    em = float(bool(matched))
    overlap = 1.0 if matched else f1(answer, golden_answers, normaliser)
    single = bool(matched) or is_single_entity(answer, golden_answers, normaliser)
    earned = overlap if settings.outcome == "f1" and single else em
    tier = max(earned, settings.format_at(step))
    why = (
        "exact match"
        if matched
        else ("answered, but wrong" if single else "wrong: several candidates in one answer")
    )
    if settings.outcome == "f1" and earned and not matched:
        why = "partly right"
    if settings.answer_tags == "divide" and turns.n_answers > 1:
        tier, why = tier / turns.n_answers, f"{why}; divided by {turns.n_answers} answers"
    elif settings.answer_tags == "search_r1" and earned and turns.n_tags > _SEARCH_R1_TAGS:
        tier, why = tier * _SEARCH_R1_SHARE, f"{why}; a quarter for {turns.n_tags} answer tags"
    return Score(
        tier + extra,
        em,
        overlap,
        1.0,
        turns.n_answers,
        answer,
        why,
        n_searches,
        float(single),
        matched,
        terms,
    )


def score_trace(trace: Trace, settings: RewardSettings = DEFAULTS, step: int | None = None) -> Score | None:
    """Score a trace by its spans; None where an outage ended it: it then has no reward at all.

    ``step`` is the trace's own where it is not given.
    """
    if trace.stop_reason is StopReason.INFRA_ERROR:
        return None
    return score(
        read_trace(trace),
        trace.golden_answers,
        get_dialect(trace.dialect),
        settings,
        trace.step if step is None else step,
    )
