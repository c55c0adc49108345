"""Rollouts of which only the text is known, cut into who wrote what.

A published transcript is one string: policy turns and observations in a row. An observation is believed to
be the tool's only where a tool would have written it: directly after a search that the policy closed.
"""

from __future__ import annotations

from scout_protocol.dialect import SEARCH_R1, Dialect
from scout_protocol.records import Author, Span
from scout_protocol.turn import Action, parse

# Search-R1's environment answers a turn without an action with this line, outside any marker, and it shows
# tags: unless it is known as tool text, "answer: and" would be read from it.
# Source: Search-R1, search_r1/llm_agent/generation.py, execute_predictions.
_INVALID_START = "\nMy previous action is invalid."
_INVALID_END = "Let me try again.\n"


def split_transcript(text: str, dialect: Dialect = SEARCH_R1) -> list[Span]:
    """The spans of one transcript in order; their texts joined give ``text`` again.

    An observation marker anywhere else was written by the policy (forged) and stays part of its turn. An
    observation without an end (a transcript cut off) is tool text to the end.
    """
    spans: list[Span] = []
    at = 0
    while at < len(text):
        end, tool_end = _next_tool_text(text, at, dialect)
        if end > at:
            spans.append(Span(Author.POLICY, text[at:end]))
        if tool_end > end:
            spans.append(Span(Author.TOOL, text[end:tool_end]))
        at = tool_end
    return spans


def _next_tool_text(text: str, at: int, dialect: Dialect) -> tuple[int, int]:
    """Where the tool text after position ``at`` starts and ends; ``(len, len)`` if there is none."""
    found = [span for span in (_observation(text, at, dialect), _invalid_notice(text, at)) if span]
    return min(found, default=(len(text), len(text)))


def _observation(text: str, at: int, dialect: Dialect) -> tuple[int, int] | None:
    tag = dialect.observation
    turn = parse(text[at:], dialect)
    end = at + turn.end
    rest = text[end:]
    if turn.action is not Action.SEARCH or not rest.lstrip().startswith(tag.open):
        return None
    close = text.find(tag.close, end)
    if close < 0:
        return end, len(text)
    tool_end = close + len(tag.close)
    # the blank lines around an observation are the tool's as well
    return end, tool_end + len(text[tool_end:]) - len(text[tool_end:].lstrip("\n"))


def _invalid_notice(text: str, at: int) -> tuple[int, int] | None:
    start = text.find(_INVALID_START, at)
    end = text.find(_INVALID_END, start) if start >= 0 else -1
    return (start, end + len(_INVALID_END)) if end >= 0 else None
