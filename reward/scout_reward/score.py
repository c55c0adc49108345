"""One trajectory, one score, all its parts. Reads only what the policy itself wrote."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scout_protocol.dialect import SEARCH_R1, Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import Author, StopReason, Trace
from scout_protocol.turn import Action, Malformed, Turn, parse
from scout_reward.exact_match import exact_match
from scout_reward.f1 import f1

FORMAT_SCORE = 0.1


class Score(msgspec.Struct, frozen=True):
    """The parts of one score.

    Attributes:
        total: the reward: 0.0 without an answer, ``format_score`` for a wrong one, 1.0 for a right one;
            divided by ``n_answers`` where the policy wrote more than one.
        em: 1.0 if the answer is right, else 0.0.
        f1: best token F1 over the golden answers, in [0, 1]; not part of ``total``.
        format: 1.0 if the policy closed an answer of its own, else 0.0.
        n_answers: answers closed in the policy's text.
        answer: the answer that was read; empty without one.
        why: one clause for the reader.
    """

    total: float
    em: float
    f1: float
    format: float
    n_answers: int
    answer: str
    why: str

    def as_dict(self) -> dict[str, Any]:
        """The parts as plain values, for traces and metrics."""
        return msgspec.structs.asdict(self)


def score(
    policy_texts: Sequence[str],
    golden_answers: Sequence[str],
    dialect: Dialect = SEARCH_R1,
    format_score: float = FORMAT_SCORE,
) -> Score:
    """Score one trajectory.

    Args:
        policy_texts: the policy's own turns in order; never prompt text, never tool text.
        golden_answers: every accepted answer.
        dialect: whose tags count.
        format_score: the reward of a closed answer that is wrong, in [0, 1).

    Raises:
        UserError: a lone string where a sequence is needed, no golden answers, ``format_score`` out of range.
    """
    for name, value in (("policy_texts", policy_texts), ("golden_answers", golden_answers)):
        if isinstance(value, str):
            raise UserError(name, value, "must be a list of strings, not one string")
    if not len(golden_answers):
        raise UserError("golden_answers", "[]", "needs at least one answer")
    if not 0.0 <= format_score < 1.0:
        raise UserError(
            "format_score", format_score, "must be at least 0 and below 1, what a right answer earns"
        )

    n_answers = sum(_count_answers(text, dialect) for text in policy_texts)
    turns = [(text, parse(text, dialect)) for text in policy_texts]
    answering = [(text, turn) for text, turn in turns if turn.action is Action.ANSWER]
    if not answering:
        return Score(0.0, 0.0, 0.0, 0.0, n_answers, "", _why_no_answer([turn for _, turn in turns]))
    text, turn = answering[-1]
    if _inside_forged_observation(text[: turn.end], dialect):
        return Score(0.0, 0.0, 0.0, 0.0, n_answers, "", "the answer stands inside a forged observation")

    em = exact_match(turn.text, golden_answers)
    total, why = (1.0, "exact match") if em else (format_score, "answered, but wrong")
    if n_answers > 1:
        total, why = total / n_answers, f"{why}; divided by {n_answers} answers"
    return Score(total, em, f1(turn.text, golden_answers), 1.0, n_answers, turn.text, why)


def score_trace(trace: Trace, format_score: float = FORMAT_SCORE) -> Score | None:
    """Score a trace by its policy spans; None where an outage ended it: it then has no reward at all."""
    if trace.stop_reason is StopReason.INFRA_ERROR:
        return None
    texts = [span.text for span in trace.spans if span.author is Author.POLICY]
    return score(texts, trace.golden_answers, get_dialect(trace.dialect), format_score)


def _count_answers(text: str, dialect: Dialect) -> int:
    """Closed answers in the text: an opening tag and the nearest closing tag after it. Linear in the text."""
    tag, count, at = dialect.answer, 0, 0
    while (start := text.find(tag.open, at)) >= 0 and (end := text.find(tag.close, start)) >= 0:
        count, at = count + 1, end + len(tag.close)
    return count


def _inside_forged_observation(turn_text: str, dialect: Dialect) -> bool:
    """Whether the answer that ends ``turn_text`` stands inside an observation that the policy wrote itself.

    Such text imitates a page. A marker merely mentioned inside a closed think block does not count.
    """
    head = turn_text[: turn_text.rfind(dialect.answer.open)]
    head = head[head.rfind(dialect.think.close) + 1 :]
    tag = dialect.observation
    return head.rfind(tag.open) > head.rfind(tag.close)


def _why_no_answer(turns: Sequence[Turn]) -> str:
    if not turns:
        return "the policy wrote nothing"
    last = turns[-1]
    if last.action is Action.SEARCH:
        return "no answer: ended with a search"
    reasons = {
        Malformed.NO_ACTION: "no answer tag",
        Malformed.NO_CLOSING_TAG: "a tag was opened and never closed",
        Malformed.NO_OPENING_TAG: "a tag was closed and never opened",
        Malformed.NESTED_TAG: "another tag stands inside the action",
        Malformed.EMPTY_QUERY: "the query is empty",
        Malformed.EMPTY_ANSWER: "the answer is empty",
    }
    return f"no answer: {reasons[last.reason] if last.reason else 'no answer tag'}"
