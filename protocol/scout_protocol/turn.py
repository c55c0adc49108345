"""What one policy turn asks for: a search, an answer, or nothing that can be executed.

The rule is that of generation with stop strings: the turn ends with the first closing marker of an
action, and what follows is not part of it. The scan is one pass over the markers, so its time is
linear in the text whatever the text is.
"""

from __future__ import annotations

import enum

import msgspec

from scout_protocol.dialect import SEARCH_R1, Dialect, marker_pattern


class Action(enum.StrEnum):
    SEARCH = "search"
    ANSWER = "answer"
    MALFORMED = "malformed"


class Malformed(enum.StrEnum):
    """Why a turn cannot be executed; a closed set."""

    NO_ACTION = "no_action"  # neither a search nor an answer was opened
    NO_CLOSING_TAG = "no_closing_tag"  # opened, never closed
    NO_OPENING_TAG = "no_opening_tag"  # closed, never opened
    NESTED_TAG = "nested_tag"  # another marker stands inside the action
    EMPTY_QUERY = "empty_query"
    EMPTY_ANSWER = "empty_answer"


class Turn(msgspec.Struct, frozen=True):
    """One parsed policy turn.

    Attributes:
        action: what the turn asks for.
        text: the query or the answer, stripped; empty when malformed.
        reason: why the turn is malformed, else None.
        end: number of characters of the input that belong to the turn (past the closing marker).
        think: the content of the first think block, stripped, up to the action where it was never closed;
            None where there is none.
        forged_observation: the policy wrote an observation marker itself.
    """

    action: Action
    text: str
    reason: Malformed | None
    end: int
    think: str | None = None
    forged_observation: bool = False


class _Open(msgspec.Struct):
    is_search: bool
    start: int  # index of the opening marker
    end: int  # index just past it
    others: int = 0  # markers seen since it was opened


def parse(text: str, dialect: Dialect = SEARCH_R1) -> Turn:
    """Parse one policy turn.

    Markers that are merely mentioned inside a *closed* think block are not actions; an action that is
    closed while the think block is still open is one, since generation stopped there.

    Args:
        text: what the policy wrote, of any length, with or without text after the action.
        dialect: whose markers count.
    """
    pending: list[_Open] = []  # action markers opened and not yet closed
    think_from: int | None = None  # where the open think block's content starts
    pending_at_think = 0
    think: str | None = None
    forged = False

    def thought(stop: int) -> str | None:
        """The first think block's content where it is still open at ``stop``."""
        if think is not None or think_from is None:
            return think
        inside = pending[pending_at_think:]
        return text[think_from : inside[0].start if inside else stop].strip()

    for match in marker_pattern(dialect).finditer(text):
        marker = match.group()
        if marker in (dialect.search.close, dialect.answer.close):
            think = thought(match.start())
            return _close(text, match.start(), match.end(), marker, dialect, pending, think, forged)
        if pending:
            pending[-1].others += 1
        if marker == dialect.think.open:
            if think_from is None:
                think_from, pending_at_think = match.end(), len(pending)
        elif marker == dialect.think.close:
            if think_from is not None:
                if think is None:
                    think = text[think_from : match.start()].strip()
                del pending[pending_at_think:]
                think_from = None
        elif marker in (dialect.search.open, dialect.answer.open):
            pending.append(_Open(marker == dialect.search.open, match.start(), match.end()))
        else:
            forged = True

    reason = Malformed.NO_CLOSING_TAG if pending else Malformed.NO_ACTION
    return Turn(Action.MALFORMED, "", reason, len(text), thought(len(text)), forged)


def _close(
    text: str,
    start: int,
    end: int,
    marker: str,
    dialect: Dialect,
    pending: list[_Open],
    think: str | None,
    forged: bool,
) -> Turn:
    """The turn that the closing marker at ``text[start:end]`` ends."""
    is_search = marker == dialect.search.close

    def malformed(reason: Malformed) -> Turn:
        return Turn(Action.MALFORMED, "", reason, end, think, forged)

    if not any(o.is_search == is_search for o in pending):
        return malformed(Malformed.NO_OPENING_TAG)
    if len(pending) > 1 or pending[0].others:
        return malformed(Malformed.NESTED_TAG)
    content = text[pending[0].end : start].strip()
    if not content:
        return malformed(Malformed.EMPTY_QUERY if is_search else Malformed.EMPTY_ANSWER)
    return Turn(Action.SEARCH if is_search else Action.ANSWER, content, None, end, think, forged)
