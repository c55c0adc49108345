"""Control experiments: tools that take the evidence away and leave everything else as it was.

A policy that really searches falls to about zero under both; one that answers from memory does not.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from scout_agent.client import ToolReply, Tools
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import neutralise, render
from scout_protocol.records import RLRow
from scout_protocol.turn import Action, parse

CONTROLS = ("none", "blank", "shuffled", "random")  # "random" lives in random_control


class BlankTools:
    """Every observation becomes the block of a search that found nothing.

    The inner tools are still called, so latency, validity and outages stay what they are.
    """

    def __init__(self, inner: Tools, dialect: str = "search-r1") -> None:
        self.inner = inner
        self.blank = render([], get_dialect(dialect))

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        """Send the action and keep everything of the reply but its text."""
        reply = await self.inner.call(trajectory_id, action, is_last_step)
        return reply if reply.infra_error else replace(reply, observation=self.blank)


class ShuffledTools:
    """Every query is replaced by the question of another row: well-formed evidence about something else.

    The n-th search on a row always gets the same question for the same seed, whatever the order in which
    trajectories run. Turns that are no search go through unchanged: a hint about form is no evidence.

    Args:
        inner: the real tools.
        questions: the questions to draw from.
        seed: of the draw.
        dialect: of the actions.

    Raises:
        UserError: fewer than two different questions.
    """

    def __init__(
        self, inner: Tools, questions: Sequence[str], seed: int = 0, dialect: str = "search-r1"
    ) -> None:
        self.inner, self.seed, self.dialect = inner, seed, get_dialect(dialect)
        self.questions = sorted(set(questions))
        if len(self.questions) < 2:
            raise UserError("control", "shuffled", "needs at least two rows with different questions")

    def for_row(self, row: RLRow) -> Tools:
        """The tools for one trajectory on this row."""
        return _ShuffledRow(self, f"{row.data_source}\0{row.id}", row.question)

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        """One call outside an episode, drawn by the trajectory's id; its own question is not known here."""
        return await _ShuffledRow(self, trajectory_id, "").call(trajectory_id, action, is_last_step)


class _ShuffledRow:
    """`ShuffledTools` bound to one row; counts the row's searches."""

    def __init__(self, shared: ShuffledTools, key: str, own_question: str) -> None:
        self.shared, self.own_question = shared, own_question
        self.random = random.Random(f"{shared.seed}\0{key}")  # seeded by the text: the same in every process

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        shared = self.shared
        if parse(action, shared.dialect).action is Action.SEARCH:
            question = self.own_question
            while question == self.own_question:
                question = self.random.choice(shared.questions)
            search = shared.dialect.search
            action = f"{search.open}{neutralise(question)}{search.close}"
        return await shared.inner.call(trajectory_id, action, is_last_step)
