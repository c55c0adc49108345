"""The control "random": every search is answered with passages drawn by chance.

Unlike `ShuffledTools`, what comes back was found for nobody's question; its form, the number of passages and
the frame around them are those of the real server.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from scout_agent.client import ToolReply, Tools
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import Document, render
from scout_protocol.records import RLRow
from scout_protocol.turn import Action, parse


class RandomTools:
    """Draws ``topk`` passages of a pool for each search; the same ones for the same seed, row and search.

    The inner tools are still called, so latency, validity and outages stay what they are. Turns that are no
    search keep their own reply: a hint about form is no evidence.

    Args:
        inner: the real tools.
        pool: the passages to draw from, in an order that does not change.
        topk: passages in one observation.
        seed: of the draws.
        dialect: of the actions.
        style: of the observations, as the server renders them.

    Raises:
        UserError: the pool is smaller than ``topk``.
    """

    def __init__(
        self,
        inner: Tools,
        pool: Sequence[Document],
        topk: int,
        seed: int = 0,
        dialect: str = "search-r1",
        style: str = "search_r1",
    ) -> None:
        self.inner, self.pool, self.topk, self.seed = inner, list(pool), topk, seed
        self.dialect, self.style = get_dialect(dialect), style
        if not 1 <= topk <= len(self.pool):
            raise UserError(
                "control", "random", f"needs at least {topk} passages, the server gave {len(self.pool)}"
            )

    def for_row(self, row: RLRow) -> Tools:
        """The tools for one trajectory on this row."""
        return _RandomRow(self, f"{row.data_source}\0{row.id}")

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        """One call outside an episode, drawn by the trajectory's id."""
        return await _RandomRow(self, trajectory_id).call(trajectory_id, action, is_last_step)


class _RandomRow:
    """`RandomTools` bound to one row; its draws go on from search to search."""

    def __init__(self, shared: RandomTools, key: str) -> None:
        self.shared = shared
        self.random = random.Random(f"{shared.seed}\0{key}")  # seeded by the text: the same in every process

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        shared = self.shared
        reply = await shared.inner.call(trajectory_id, action, is_last_step)
        if reply.infra_error or parse(action, shared.dialect).action is not Action.SEARCH:
            return reply
        drawn = self.random.sample(shared.pool, shared.topk)
        return replace(reply, observation=render(drawn, shared.dialect, shared.style))
