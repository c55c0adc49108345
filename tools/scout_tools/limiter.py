"""Good manners towards an upstream, kept by all worker processes together.

At most N requests in flight, a paced rate, the pause that the upstream asked for, and a circuit breaker. All
of it lives in one folder: whoever uses the same folder shares the same limits.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pyrate_limiter import Rate, RateItem, SQLiteBucket

from scout_tools.backends.base import BackendError, Counters
from scout_tools.limiter_locks import ByteLocks
from scout_tools.limiter_state import SharedState

POLL_S = 0.02  # between two looks at what another process may have freed


class Gate:
    """Where every call to the upstream waits for its turn.

    Args:
        folder: shared by all workers; made where absent.
        per_second: calls a second, evenly spaced.
        in_flight: calls at once.
        counters: waits are added up here, in seconds by reason.
    """

    def __init__(
        self,
        folder: Path,
        per_second: float,
        in_flight: int,
        counters: Counters | None = None,
        state: SharedState | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.state = state or SharedState(folder / "upstream.state")
        self.counters = Counters(float) if counters is None else counters
        self._slots, self._n = ByteLocks(folder / "in_flight.lock"), in_flight
        self._interval_ms = max(1, round(1000 / per_second))
        self._bucket = SQLiteBucket.init_from_file(
            [Rate(1, self._interval_ms)], db_path=str(folder / "pace.sqlite"), use_file_lock=True
        )
        # First come, first served inside a process, and one poller a process however many wait.
        self._turn = asyncio.Lock()

    def close(self) -> None:
        self._bucket.close()  # type: ignore[no-untyped-call]
        self._slots.close()
        self.state.close()

    @asynccontextmanager
    async def permit(self, deadline: float) -> AsyncIterator[None]:
        """Hold one of the slots, after every wait that is due.

        Args:
            deadline: of the event loop's clock; nothing is waited for that cannot end before it.

        Raises:
            BackendError: ``circuit_open``, ``rate_limited`` (the upstream wants a longer pause than there is
                time), ``saturated`` (our own queue is too long), or ``limits_unavailable``.
        """
        slot = await self._enter(deadline)
        try:
            yield
        finally:
            self._slots.unlock(slot)

    async def _enter(self, deadline: float) -> int:
        await self._pause(deadline)
        start = _now()
        try:
            async with asyncio.timeout_at(deadline), self._turn:
                slot = await self._slot()
        except TimeoutError as error:
            raise BackendError("saturated", "no free slot before the deadline") from error
        finally:
            self.counters["upstream_wait_seconds:slot"] += _now() - start
        try:
            while True:
                await self._pace(deadline)
                if self.state.paused_s() == 0.0:  # another worker may have been told to wait meanwhile
                    break
                await self._pause(deadline)
            if not self.state.enter():
                raise _open()
        except BaseException:
            self._slots.unlock(slot)
            raise
        return slot

    async def _slot(self) -> int:
        while True:
            for slot in range(self._n):
                if self._slots.try_lock(slot):
                    return slot
            await asyncio.sleep(POLL_S * random.uniform(0.5, 1.5))

    async def _pause(self, deadline: float) -> None:
        while True:
            if not self.state.closed():
                raise _open()
            left = self.state.paused_s()
            if left == 0.0:
                return
            if _now() + left > deadline:
                raise BackendError("rate_limited", f"the upstream wants a pause of {left:.1f} s more")
            self.counters["upstream_wait_seconds:pause"] += left
            await asyncio.sleep(left + random.uniform(0.0, 0.05))

    async def _pace(self, deadline: float) -> None:
        while True:
            # In a thread: the file lock sleeps where another worker holds it.
            try:
                wait_s = await asyncio.to_thread(self._take)
            except (sqlite3.Error, OSError) as error:
                # A full disk, for one. Without the limits there is no call.
                raise BackendError("limits_unavailable", str(error)) from error
            if wait_s == 0.0:
                return
            if _now() + wait_s > deadline:
                raise BackendError("saturated", "no turn in the paced rate before the deadline")
            self.counters["upstream_wait_seconds:pace"] += wait_s
            await asyncio.sleep(wait_s)

    def _take(self) -> float:
        """Take this moment's place in the paced rate: 0, or the seconds until there is one."""
        item = RateItem("call", time.time_ns() // 1_000_000)
        with self._bucket.lock:  # one at a time, in this process and in all others; it is re-entrant
            self._bucket.leak(item.timestamp)
            if self._bucket.put(item):
                return 0.0
            wait_ms = self._bucket.waiting(item)
            assert isinstance(wait_ms, int)  # a coroutine for asynchronous buckets only
            if wait_ms > self._interval_ms + 1:  # the clock was set back: entries from the future
                self._bucket.flush()
            return max(1, min(wait_ms, self._interval_ms)) / 1000.0


def _open() -> BackendError:
    return BackendError("circuit_open", "the upstream failed again and again; it is asked again soon")


def _now() -> float:
    return asyncio.get_running_loop().time()
