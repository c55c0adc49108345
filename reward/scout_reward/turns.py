"""The turns in a policy's text, and the one answer among them that may count."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from scout_protocol.dialect import Dialect, marker_pattern
from scout_protocol.turn import Action, Malformed, Turn, parse

_SPOILT = (Malformed.EMPTY_ANSWER, Malformed.NESTED_TAG)


class Answer(msgspec.Struct, frozen=True):
    """What was read as the answer. ``text`` is empty where there is none; then ``why`` says why."""

    text: str
    why: str


class Turns(msgspec.Struct, frozen=True):
    """What a policy did: its queries in order, its answer, and how many answer tags it wrote.

    Attributes:
        n_answers: answers closed, in think blocks and forged observations too.
        n_tags: the larger one of opening and closing answer tags (Search-R1 counts these).
    """

    queries: list[str]
    answer: Answer
    n_answers: int
    n_tags: int


def read_turns(policy_texts: Sequence[str], dialect: Dialect) -> Turns:
    """All turns of a trajectory. The time is linear in the text, whatever the text is."""
    queries: list[str] = []
    last: Turn | None = None
    answering: tuple[str, int, Turn] | None = None  # the text, where the turn starts in it, the turn
    for text in policy_texts:
        for start, turn in _split(text, dialect):
            last = turn
            if turn.action is Action.SEARCH:
                queries.append(turn.text)
            elif turn.action is Action.ANSWER:
                answering = (text, start, turn)
            elif turn.reason in _SPOILT and text.endswith(dialect.answer.close, start, start + turn.end):
                answering = (
                    None  # the last answer that was closed is none, and no earlier one stands in for it
                )
    if answering is None:
        answer = Answer("", _why_none(last))
    else:
        text, start, turn = answering
        answer = _own(text, start + turn.end, turn, dialect)
    tag = dialect.answer
    opened = sum(text.count(tag.open) for text in policy_texts)
    closed = sum(text.count(tag.close) for text in policy_texts)
    n_answers = sum(_count_answers(text, dialect) for text in policy_texts) if opened and closed else 0
    return Turns(queries, answer, n_answers, max(opened, closed))


@cache
def _closings(dialect: Dialect) -> re.Pattern[str]:
    return re.compile(f"{re.escape(dialect.search.close)}|{re.escape(dialect.answer.close)}")


def _split(text: str, dialect: Dialect) -> Iterator[tuple[int, Turn]]:
    """Each turn of the text with the position where it starts.

    A turn ends with the first closing marker of an action (`scout_protocol.turn`). Generation stops there, so
    there is one; text from elsewhere, and turns that a mask runs together, hold several.
    """
    at = 0
    for match in _closings(dialect).finditer(text):
        yield at, parse(text[at : match.end()], dialect)
        at = match.end()
    rest = text[at:]
    if not at or rest.strip():
        turn = parse(rest, dialect)
        # what trails an action, such as the rest of the token that closed it, is no turn
        if not at or turn.reason is not Malformed.NO_ACTION:
            yield at, turn


def _own(text: str, end: int, turn: Turn, dialect: Dialect) -> Answer:
    """The answer that ends at ``text[:end]``, unless the policy put it where no answer belongs."""
    head = text[: text.rfind(dialect.answer.open, 0, end)]
    think, page = dialect.think, dialect.observation
    if head.rfind(think.open) > head.rfind(think.close):
        after = text[end:]
        closes, opens = after.find(think.close), after.find(think.open)
        # a block that never closes ended with the answer, where generation stopped
        if closes >= 0 and not 0 <= opens < closes:
            return Answer("", "the answer stands inside a think block")
    if page.open in head and _page_is_open(head, dialect):
        return Answer("", "the answer stands inside a forged observation")
    return Answer(turn.text, "")


def _page_is_open(head: str, dialect: Dialect) -> bool:
    """Whether an observation is open at the end; one that a closed think block mentions is not."""
    is_open = False
    before_think: bool | None = None  # the state where the open think block began
    for match in marker_pattern(dialect).finditer(head):
        marker = match.group()
        if marker in (dialect.observation.open, dialect.observation.close):
            is_open = marker == dialect.observation.open
        elif marker == dialect.think.open and before_think is None:
            before_think = is_open
        elif marker == dialect.think.close and before_think is not None:
            is_open, before_think = before_think, None
    return is_open


def _count_answers(text: str, dialect: Dialect) -> int:
    """Closed answers in the text: an opening tag and the nearest closing tag after it."""
    tag, count, at = dialect.answer, 0, 0
    while (start := text.find(tag.open, at)) >= 0 and (end := text.find(tag.close, start)) >= 0:
        count, at = count + 1, end + len(tag.close)
    return count


def _why_none(last: Turn | None) -> str:
    if last is None:
        return "the policy wrote nothing"
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
