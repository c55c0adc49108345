"""The tags of a dialect. A dialect is data: everything else in Scout reads its tags from here."""

from __future__ import annotations

import re
from functools import cache

import msgspec

from scout_protocol.errors import UserError


class Tag(msgspec.Struct, frozen=True):
    """An opening and a closing marker, e.g. ``<search>`` and ``</search>``."""

    open: str
    close: str


class Dialect(msgspec.Struct, frozen=True):
    """The four markers of a conversation with a search tool.

    ``think``, ``search`` and ``answer`` are written by the policy; ``observation`` only by the tool.
    """

    name: str
    think: Tag
    search: Tag
    answer: Tag
    observation: Tag

    @property
    def stops(self) -> tuple[str, str]:
        """Stop strings for generation: a policy turn ends with the first of these."""
        return (self.search.close, self.answer.close)

    @property
    def markers(self) -> tuple[str, ...]:
        """All eight markers, in a fixed order."""
        tags = (self.think, self.search, self.observation, self.answer)
        return tuple(marker for tag in tags for marker in (tag.open, tag.close))


# Search-R1 (Jin et al. 2025, arXiv:2503.09516), the tags of its released checkpoints.
SEARCH_R1 = Dialect(
    name="search-r1",
    think=Tag("<think>", "</think>"),
    search=Tag("<search>", "</search>"),
    answer=Tag("<answer>", "</answer>"),
    observation=Tag("<information>", "</information>"),
)
REACT = Dialect(
    name="react",
    think=Tag("<think>", "</think>"),
    search=Tag("<call:search>", "</call:search>"),
    answer=Tag("<answer>", "</answer>"),
    observation=Tag("<observation>", "</observation>"),
)
DIALECTS: dict[str, Dialect] = {d.name: d for d in (SEARCH_R1, REACT)}


def get_dialect(name: str) -> Dialect:
    """The dialect of that name.

    Raises:
        UserError: no dialect has that name.
    """
    if name not in DIALECTS:
        raise UserError("dialect", name, f"choose one of {', '.join(sorted(DIALECTS))}")
    return DIALECTS[name]


@cache
def marker_pattern(dialect: Dialect) -> re.Pattern[str]:
    """A pattern that matches exactly one marker of the dialect."""
    return re.compile("|".join(re.escape(m) for m in sorted(dialect.markers, key=len, reverse=True)))
