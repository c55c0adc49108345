"""Batches that do not depend on time: a wave of trajectories takes every turn together, in the rows' order.

A batched model's numbers depend, in their last bits, on what else is in the batch and how wide its padding
is. Batches made of whatever has arrived differ from run to run, and now and then so does a greedy token. In
lockstep the batches are a matter of the rows alone, so the same run gives the same tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from scout_agent.policy import Policy, PolicyTurn, Session
from scout_protocol.records import RLRow, Span


class Lockstep:
    """A policy for one wave: no member acts before every other member that still plays is ready to.

    Args:
        inner: a policy that generates concurrent turns as one batch (`TransformersPolicy`).
        rows: the wave's rows, each object once; their order is the order within a batch.

    The caller must report every finished trajectory with `leave`.
    """

    def __init__(self, inner: Policy, rows: Sequence[RLRow]) -> None:
        self.inner, self.name = inner, inner.name
        self._index = {id(row): i for i, row in enumerate(rows)}
        self._rows = list(rows)  # keeps the ids in force
        self._playing = set(range(len(rows)))
        self._ready: dict[int, asyncio.Future[None]] = {}

    async def start(self, row: RLRow) -> LockstepSession:
        """Begin the trajectory of one of the wave's rows."""
        return LockstepSession(self, self._index[id(row)], await self.inner.start(row))

    def leave(self, index: int) -> None:
        """The trajectory of row ``index`` is over, for whatever reason."""
        self._playing.discard(index)
        self._ready.pop(index, None)
        self._go_if_complete()

    async def turn(self, index: int) -> None:
        """Wait until everybody is ready."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ready[index] = ready
        self._go_if_complete()
        await ready

    def _go_if_complete(self) -> None:
        if self._ready and self._ready.keys() == self._playing:
            ready, self._ready = self._ready, {}
            # Soon and not now: whoever came last must wait like the others, or it would act before them.
            asyncio.get_running_loop().call_soon(_release, [ready[index] for index in sorted(ready)])


def _release(waiters: Sequence[asyncio.Future[None]]) -> None:
    """Wake the waiters in order, which is then the order of the batch."""
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)


class LockstepSession:
    """One member's session."""

    def __init__(self, wave: Lockstep, index: int, inner: Session) -> None:
        self.wave, self.index, self.inner = wave, index, inner
        self.prompt = inner.prompt

    async def act(self, max_tokens: int) -> PolicyTurn:
        """Wait for the wave, then act."""
        await self.wave.turn(self.index)
        return await self.inner.act(max_tokens)

    def observe(self, observation: str, max_tokens: int) -> Span:
        """As the inner session does."""
        return self.inner.observe(observation, max_tokens)
