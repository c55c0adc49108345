"""One trajectory as numbers: a trace without its text."""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import msgspec

from scout_eval.trace_log import question_key
from scout_protocol.errors import UserError
from scout_protocol.records import Author, StopReason, Trace
from scout_reward.normalise import folded, normalise

FACETS = ("data_source", "hops", "type", "level")
YES_NO = frozenset({"yes", "no"})
_AS_SPACE = str.maketrans(dict.fromkeys(string.punctuation, " "))


class Outcome(msgspec.Struct, frozen=True):
    """What the numbers need from one trajectory."""

    question: str  # key of the question; samples of one question share it
    facets: dict[str, str]
    stop_reason: StopReason
    em: float
    em_folded: float
    cover_em: float
    f1: float
    format: float
    total: float
    turns: int
    searches: int
    policy_tokens: int | None
    tool_tokens: int | None
    wall_s: float
    call_s: tuple[float, ...]  # latency of every tool call
    n_invalid: int  # turns that the tool could not execute
    error_kinds: tuple[str, ...]  # of outages
    closed_book: bool | None  # right without any observation that holds the answer; None: wrong, or unknown
    answerable: bool | None  # only a scripted oracle knows

    @property
    def infra_error(self) -> bool:
        """The tool or the endpoint was not there: this says nothing about the policy."""
        return self.stop_reason is StopReason.INFRA_ERROR


def outcome(trace: Trace) -> Outcome:
    """The outcome of a scored trace. ``trace.extra["row"]`` holds the facets of its question.

    Raises:
        UserError: the trace was not scored.
    """
    infra = trace.stop_reason is StopReason.INFRA_ERROR
    missing = [key for key in ("em", "f1", "format", "total") if key not in trace.score]
    if missing and not infra:
        raise UserError(f"trace {trace.trace_id}: score.{missing[0]}", "missing", "score the trace first")
    parts: dict[str, Any] = trace.score | trace.extra.get("paper", {})
    facets = {"data_source": trace.data_source}
    facets |= {key: str(value) for key, value in trace.extra.get("row", {}).items() if key in FACETS}
    known = [turn["answerable"] for turn in trace.extra.get("turns", []) if "answerable" in turn]
    answer, em = str(parts.get("answer", "")), float(parts.get("em", 0.0))
    kinds = [call.error_kind or "unknown" for call in trace.tool_calls if call.infra_error]
    if trace.extra.get("policy_error"):
        kinds.append(f"policy {trace.extra['policy_error']}")
    return Outcome(
        question=question_key(trace.data_source, trace.question_id),
        facets=facets,
        stop_reason=trace.stop_reason,
        em=em,
        em_folded=folded_match(answer, trace.golden_answers),
        cover_em=covers(answer, trace.golden_answers),
        f1=float(parts.get("f1", 0.0)),
        format=float(parts.get("format", 0.0)),
        total=float(parts.get("total", 0.0)),
        turns=trace.n_turns,
        searches=trace.n_searches,
        policy_tokens=trace.n_policy_tokens,
        tool_tokens=trace.n_tool_tokens,
        wall_s=trace.wall_s,
        call_s=tuple(call.latency_s for call in trace.tool_calls),
        n_invalid=sum(not call.valid and not call.infra_error for call in trace.tool_calls),
        error_kinds=tuple(kinds),
        closed_book=_closed_book(trace, answer) if em else None,
        answerable=bool(known[-1]) if known else None,
    )


def folded_match(answer: str, golden_answers: Sequence[str]) -> float:
    """1.0 if the answer equals a golden answer after folding, else 0.0; nothing never matches."""
    given = folded(answer)
    return float(bool(given) and any(given == folded(gold) for gold in golden_answers))


def covers(text: str, golden_answers: Sequence[str]) -> float:
    """Cover exact match: 1.0 if the words of a golden answer stand in the text, in order and together.

    Words after `normalise`; R1-Searcher's rule (arXiv:2503.05592). It forgives "It is Paris." and also every
    answer that names several candidates: it is reported, never rewarded.
    """
    padded = f" {normalise(text)} "
    return float(any(f" {wanted} " in padded for wanted in map(normalise, golden_answers) if wanted))


def mentions(text: str, answers: Sequence[str]) -> bool:
    """Whether an answer stands in a passage or an observation, word for word.

    `normalise` deletes punctuation, which glues words of running text together ("Rome.</information>"), so a
    second reading with punctuation as space counts as well.
    """
    if covers(text, answers):
        return True
    padded = f" {_spaced(text)} "
    return any(f" {wanted} " in padded for wanted in map(_spaced, answers) if wanted)


def _spaced(text: str) -> str:
    return normalise(text.translate(_AS_SPACE))


def _closed_book(trace: Trace, answer: str) -> bool | None:
    """Whether a right answer stands in no observation. A searched yes/no answer cannot be told."""
    if not trace.n_searches:
        return True
    if normalise(answer) in YES_NO:
        return None
    read = " ".join(span.text for span in trace.spans if span.author is Author.TOOL)
    return not mentions(read, [answer])
