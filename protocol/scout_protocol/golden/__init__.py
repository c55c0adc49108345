"""The golden table: what a turn means, written by hand, for every room's tests to run against.

One JSON line of ``turns.jsonl`` per turn. Texts of 100 kB are not spelled out: ``{"repeat": [s, n]}`` is
``s * n`` and ``{"concat": [part, …]}`` joins its parts.
"""

from __future__ import annotations

from importlib import resources
from typing import Any

import msgspec

from scout_protocol.turn import Action, Malformed


class VerlTool(msgspec.Struct, frozen=True):
    """What verl-tool's search_retrieval tool makes of the same text, and why that differs from Scout."""

    action: Action
    text: str
    why: str


class GoldenTurn(msgspec.Struct, frozen=True):
    """A policy turn and what it must parse to.

    Attributes:
        rest: what of ``text`` follows the action and is not part of the turn.
        think: the expected think text; UNSET where the line does not say.
        forged: the policy wrote an observation marker itself.
        verl_tool: set only where verl-tool disagrees.
    """

    name: str
    dialect: str
    text: str
    action: Action
    want_text: str
    reason: Malformed | None
    rest: str
    think: str | msgspec.UnsetType | None = msgspec.UNSET
    forged: bool = False
    verl_tool: VerlTool | None = None


def _expand(value: Any) -> str:
    if isinstance(value, str):
        return value
    if "repeat" in value:
        text, times = value["repeat"]
        return str(text) * int(times)
    return "".join(_expand(part) for part in value["concat"])


def golden_turns() -> list[GoldenTurn]:
    """All lines of the table, in order, with generated texts expanded."""
    turns = []
    # split on "\n" only: str.splitlines would also break at U+2028 and the like inside a text
    for line in (resources.files(__name__) / "turns.jsonl").read_text(encoding="utf-8").split("\n"):
        if line:
            row = msgspec.json.decode(line)
            for part in (row, row.get("verl_tool") or {}):
                for key in ("text", "want_text", "rest"):
                    if key in part:
                        part[key] = _expand(part[key])
            turns.append(msgspec.convert(row, GoldenTurn))
    return turns
