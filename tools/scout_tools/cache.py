"""What was answered once is answered again: an LRU in each process over a store that all of them share.

Failures never enter. "No results" is remembered for a while only. Of many that want the same key at the same
time, in whatever worker, one asks; the others wait for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import sys
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec

from scout_protocol.observation import Document
from scout_tools.backends.base import BackendError, Counters, note
from scout_tools.cache_store import Store, StoreError
from scout_tools.limiter_locks import ByteLocks

LRU_ENTRIES = 10_000
LRU_BYTES = 32 << 20  # long summaries must not make a worker fat
POLL_S = 0.02  # between two looks at what another worker is fetching
GRACE_S = 0.1  # a flight ends this much before those who wait for it, so that they learn why
RETRY_S = 0.5  # with less time left than this, a joined failure is final


class Entry(msgspec.Struct, frozen=True):
    """One kept answer. Times are seconds since 1970; ``expires_at`` 0 means never."""

    query: str
    language: str
    topk: int
    version: str
    stored_at: float
    expires_at: float
    documents: list[Document]


_DECODER, _ENCODER = msgspec.msgpack.Decoder(Entry), msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Key:
    """What makes two searches the same one. ``version`` is the backend's fingerprint."""

    query: str
    language: str
    topk: int
    version: str

    def digest(self) -> bytes:
        """24 bytes, the same in every process and release."""
        parts = (self.version, self.language, str(self.topk), self.query)
        return hashlib.blake2b("\0".join(parts).encode(errors="replace"), digest_size=24).digest()

    def matches(self, entry: Entry) -> bool:
        mine = (self.query, self.language, self.topk, self.version)
        return mine == (entry.query, entry.language, entry.topk, entry.version)


def encode_entry(entry: Entry) -> bytes:
    return _ENCODER.encode(entry)


def decode_entry(raw: bytes) -> Entry:
    """Raises msgspec.DecodeError for anything that is not an entry."""
    return _DECODER.decode(raw)


class Cache:
    """The two levels and the single flight.

    Args:
        store: shared by the workers.
        locks: one number per key, shared by the workers of this machine.
        counters: hits by level, misses and errors are counted here.
        empty_ttl_s: how long "no results" is believed.
    """

    def __init__(self, store: Store, locks: ByteLocks, counters: Counters, empty_ttl_s: float) -> None:
        self.store = store
        self._locks, self._counters, self._empty_ttl_s = locks, counters, empty_ttl_s
        # Encoded: as objects, 10,000 answers would take half as much again, and more where text is not Latin.
        # With the time of the monotonic clock until which they may be used.
        self._lru: OrderedDict[Key, tuple[float, bytes]] = OrderedDict()
        self._lru_bytes = 0
        self._flights: dict[Key, asyncio.Task[list[Document]]] = {}
        self._complained = False

    def recent(self, key: Key) -> list[Document] | None:
        """The answer if this process still holds it."""
        kept = self._lru.get(key)
        if kept is None:
            return None
        until, raw = kept
        if until <= time.monotonic():
            del self._lru[key]
            self._lru_bytes -= len(raw)
            return None
        self._lru.move_to_end(key)
        self._counters["cache_hits:lru"] += 1
        note(cache="lru")
        return _DECODER.decode(raw).documents

    async def fetch(
        self, key: Key, make: Callable[[float], Awaitable[list[Document]]], deadline: float
    ) -> list[Document]:
        """The answer from the store, from whoever is fetching it, or from ``make``.

        Args:
            make: asks the source; is given the time by which it must end. Its failures are not kept.
            deadline: of the event loop's clock.

        Raises:
            BackendError: what ``make`` raised, or ``timeout``.
        """
        entry = await self._stored(key)
        if entry is not None:
            self._counters["cache_hits:store"] += 1
            note(cache="store")
            return entry.documents
        loop = asyncio.get_running_loop()
        while True:
            flight = self._flights.get(key)
            leads = flight is None
            if flight is None:
                # A task of its own: it ends well even if the action that began it gives up earlier.
                flight = loop.create_task(self._fly(key, make, deadline - GRACE_S))
                self._flights[key] = flight
                flight.add_done_callback(lambda done: self._landed(key, done))
            try:
                async with asyncio.timeout_at(deadline):
                    documents = await asyncio.shield(flight)
            except TimeoutError as error:
                raise BackendError("timeout", "no answer before the deadline") from error
            except BackendError as error:
                # The other one's time was over, ours is not.
                out_of_time = error.kind in ("timeout", "saturated")
                if leads or not out_of_time or loop.time() + RETRY_S > deadline:
                    raise BackendError(error.kind, error.detail) from error
                continue
            if not leads:
                self._counters["cache_hits:shared"] += 1
                note(cache="shared")
            return documents

    async def close(self) -> None:
        for flight in self._flights.values():
            flight.cancel()
        await self.store.close()
        self._locks.close()

    def _landed(self, key: Key, flight: asyncio.Task[list[Document]]) -> None:
        self._flights.pop(key, None)
        if not flight.cancelled():
            flight.exception()  # seen, even if everyone who waited has gone

    async def _fly(
        self, key: Key, make: Callable[[float], Awaitable[list[Document]]], deadline: float
    ) -> list[Document]:
        number = int.from_bytes(key.digest()[:8], "big") >> 3  # of 2**61; sharing one costs a wait, no more
        waited = False
        while not self._locks.try_lock(number):
            waited = True
            if asyncio.get_running_loop().time() > deadline:
                raise BackendError("timeout", "another worker was still fetching it at the deadline")
            await asyncio.sleep(POLL_S * random.uniform(0.5, 1.5))
        try:
            entry = await self._stored(key)  # another worker may have kept it just now
            if entry is not None:
                level = "shared" if waited else "store"
                self._counters[f"cache_hits:{level}"] += 1
                note(cache=level)
                return entry.documents
            self._counters["cache_misses"] += 1
            note(cache="miss")
            documents = await make(deadline)
            await self._keep(key, documents)
            return documents
        finally:
            self._locks.unlock(number)

    async def _stored(self, key: Key) -> Entry | None:
        try:
            raw = await self.store.get(key.digest())
            entry = None if raw is None else decode_entry(raw)
        except (StoreError, msgspec.DecodeError) as error:
            self._complain(f"cannot be read ({error})")
            return None
        if entry is None or not key.matches(entry):
            return None
        left_s = _left_s(entry)
        if left_s <= 0.0:
            return None
        self._remember(key, left_s, raw or b"")
        return entry

    async def _keep(self, key: Key, documents: list[Document]) -> None:
        """Into the store before anyone is answered: what was acknowledged is on the disk."""
        now = time.time()
        expires_at = 0.0 if documents else now + self._empty_ttl_s
        entry = Entry(key.query, key.language, key.topk, key.version, now, expires_at, documents)
        raw = encode_entry(entry)
        try:
            await self.store.put(key.digest(), raw, None if documents else self._empty_ttl_s)
        except StoreError as error:
            self._complain(f"cannot be written ({error})")
        self._remember(key, _left_s(entry), raw)

    def _remember(self, key: Key, left_s: float, raw: bytes) -> None:
        old = self._lru.pop(key, None)
        self._lru_bytes += len(raw) - (len(old[1]) if old is not None else 0)
        self._lru[key] = (time.monotonic() + left_s, raw)
        while len(self._lru) > LRU_ENTRIES or self._lru_bytes > LRU_BYTES:
            self._lru_bytes -= len(self._lru.popitem(last=False)[1][1])

    def _complain(self, what: str) -> None:
        """A cache that fails slows things down; it is no outage of the search."""
        self._counters["cache_errors"] += 1
        if not self._complained:
            print(f"scout serve: cache: {what}; going on without", file=sys.stderr, flush=True)
            self._complained = True


def _left_s(entry: Entry) -> float:
    """How long an entry may still be used. One from the future (the clock was set back) is not."""
    if entry.expires_at == 0.0:
        return float("inf")
    now = time.time()
    return entry.expires_at - now if entry.stored_at <= now + 1.0 else 0.0
