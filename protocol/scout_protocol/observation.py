"""What the tool writes back. Retrieved text is untrusted: no marker in it survives rendering."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

import msgspec

from scout_protocol.dialect import DIALECTS, SEARCH_R1, Dialect, Tag
from scout_protocol.errors import UserError
from scout_protocol.turn import Malformed

TRUNCATED = "…(truncated)"
NO_RESULTS = "No results found."
STYLES = ("search_r1", "wiki")

# Control tokens of chat templates would become real control tokens: <|im_end|>, <|eot_id|>, DeepSeek's
# <｜User｜>, Gemma's <end_of_turn>, Llama 2's </s> and [INST], Qwen's <tool_call>.
_CONTROL = (
    r"<[|｜][^<>|｜\s]{1,64}[|｜]>|</?(?:s|bos|eos|pad|unk)>|</?tool_(?:call|response)>"
    r"|<(?:start|end)_of_turn>|\[/?INST\]|<</?SYS>>"
)


class Document(msgspec.Struct, frozen=True):
    """One retrieved passage. ``url`` is empty where the source has none.

    ``title`` is shown as it is: wiki-18's titles keep the quotes that its ``contents`` has around most of
    them, since that is what released checkpoints saw.
    """

    id: str
    title: str
    text: str
    score: float = 0.0
    url: str = ""


@lru_cache(maxsize=1)
def _unsafe_pattern() -> re.Pattern[str]:
    # Markers of every dialect, so that a page cannot attack a run that uses the other one.
    markers = sorted({m for d in DIALECTS.values() for m in d.markers}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, markers)) + "|" + _CONTROL, re.IGNORECASE)


def neutralise(text: str) -> str:
    """The same text with every marker and chat control token made inert.

    Angle and square brackets of a marker become ‹ › ⟦ ⟧, so a reader still sees what stood there. Idempotent.
    """
    swap = str.maketrans("<>[]", "‹›⟦⟧")
    return _unsafe_pattern().sub(lambda m: m.group().translate(swap), text)


def _wrap(body: str, dialect: Dialect) -> str:
    tag = dialect.observation
    return f"\n\n{tag.open}{body}{tag.close}\n\n"


def render(
    documents: Sequence[Document],
    dialect: Dialect = SEARCH_R1,
    style: str = "search_r1",
    max_chars: int = 20_000,
) -> str:
    """The observation for one search.

    ``search_r1`` is the shape released checkpoints were trained on (Search-R1, ``_passages2string``);
    ``wiki`` adds the URL. More than ``max_chars`` characters of body are cut with a visible mark.

    Raises:
        UserError: unknown style.
    """
    if style not in STYLES:
        raise UserError("observation style", style, f"choose one of {', '.join(STYLES)}")
    if not documents:
        return _wrap(NO_RESULTS, dialect)
    parts = []
    for rank, doc in enumerate(documents, start=1):
        if style == "search_r1":
            parts.append(f"Doc {rank}(Title: {doc.title}) {doc.text}")
        else:
            url = f"\nURL: {doc.url}" if doc.url else ""
            parts.append(f"**Doc {rank} (Title: {doc.title})**{url}\n{doc.text}")
    body = neutralise("\n".join(parts).strip())
    if len(body) > max_chars:
        body = body[: max(0, max_chars - len(TRUNCATED))] + TRUNCATED
    return _wrap(body, dialect)


def render_unavailable(dialect: Dialect = SEARCH_R1) -> str:
    """The observation of an outage: it is never an empty result."""
    return _wrap("The search tool is unavailable right now; this is not an empty result.", dialect)


def render_hint(reason: Malformed, dialect: Dialect = SEARCH_R1) -> str:
    """A short hint for a turn that could not be executed."""
    search, answer = dialect.search, dialect.answer
    why = {
        Malformed.NO_ACTION: "no search or answer was found",
        Malformed.NO_CLOSING_TAG: "the action was not closed",
        Malformed.NO_OPENING_TAG: "the action was not opened",
        Malformed.NESTED_TAG: "another tag stands inside the action",
        Malformed.EMPTY_QUERY: "the query is empty",
        Malformed.EMPTY_ANSWER: "the answer is empty",
    }[reason]
    # The hint shows tags without their brackets: it is tool text and must stay inert.
    return _wrap(
        f"Invalid action: {why}. Use {_name(search)} for a query or {_name(answer)} to answer.", dialect
    )


def render_last_turn(dialect: Dialect = SEARCH_R1) -> str:
    """What the tool says before the last turn that a policy is allowed: answer now."""
    return _wrap(
        f"This is the last turn, no more searches are possible. Use {_name(dialect.answer)} to answer now.",
        dialect,
    )


def render_repeated(dialect: Dialect = SEARCH_R1) -> str:
    """What the tool says in place of results that the conversation already holds."""
    return _wrap(
        "This search was made before and its results stand above; it was not run again. "
        f"Use {_name(dialect.search)} for another query or {_name(dialect.answer)} to answer.",
        dialect,
    )


def _name(tag: Tag) -> str:
    return tag.open.strip("<>")


def truncate_tokens(
    observation: str,
    dialect: Dialect,
    max_tokens: int,
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
) -> str:
    """The observation cut to at most ``max_tokens`` tokens, keeping both of its markers.

    The mark "…(truncated)" stands where text is missing. An observation that fits comes back unchanged.

    Raises:
        UserError: ``max_tokens`` cannot even hold the empty frame.
    """
    if len(encode(observation)) <= max_tokens:
        return observation
    tag = dialect.observation
    start, stop = observation.find(tag.open), observation.rfind(tag.close)
    if start < 0 or stop < start:
        raise UserError("observation", observation[:80], f"must be wrapped in {tag.open}…{tag.close}")
    head, tail = observation[: start + len(tag.open)], TRUNCATED + observation[stop:]
    body_ids = encode(observation[start + len(tag.open) : stop])
    room = max(0, max_tokens - len(encode(head)) - len(encode(tail)))
    while True:
        # A cut inside a character decodes to U+FFFD; merging across the seams can add a token, so re-check.
        body = decode(body_ids[:room]).rstrip("\ufffd")
        cut = head + body + tail
        over = len(encode(cut)) - max_tokens
        if over <= 0:
            return cut
        if room == 0:
            raise UserError("max_obs_tokens", max_tokens, f"needs at least {max_tokens + over} tokens")
        room = max(0, room - over)
