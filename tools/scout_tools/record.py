"""Record what a backend answered, and repeat a run from it, offline and bit for bit.

The record is keyed by the query with its spaces collapsed and ASCII in lower case, as a worker's rendered
answers are: what is answered from those is in the record too. While recording, what was recorded first stays
the answer, so that one query has one answer in the whole run. Outages are not recorded: in the replay they
are misses, and a miss is an error, never a call and never an empty result.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.observation import Document
from scout_tools.backends.base import Backend, BackendError, Counters, counters_of, facts_of, note
from scout_tools.cache_store import LmdbStore, StoreError
from scout_tools.rendered import normalise

FORMAT = 2  # 2: keyed by the normalised query
MAX_GB = 64.0  # of address space; the file is as large as what it holds


class Meta(msgspec.Struct, frozen=True):
    """meta.json: whose answers these are."""

    format: int
    backend: str
    fingerprint: str


class Recorded(msgspec.Struct, frozen=True):
    """One recorded search."""

    query: str
    topk: int
    documents: list[Document]


_DECODER, _ENCODER = msgspec.msgpack.Decoder(Recorded), msgspec.msgpack.Encoder()


def _key(query: str, topk: int) -> bytes:
    text = f"{topk}\0{normalise(query)}"
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=24).digest()


class RecordingBackend:
    """Answers from the record, else from the backend, and then records.

    Raises:
        UserError: the folder holds a record of another backend.
    """

    keep_s = float("inf")  # a worker keeps only what it was answered, and that is recorded and never changes

    def __init__(self, inner: Backend, folder: Path) -> None:
        self._inner = inner
        self.name, self.fingerprint = inner.name, inner.fingerprint
        meta = Meta(FORMAT, inner.name, inner.fingerprint)
        held = _write_meta(folder, meta)
        if held != meta:
            remedy = f"holds answers of {held.fingerprint}, this is {meta.fingerprint}: choose another folder"
            raise UserError("--record", folder, remedy)
        self._store, self._counters = _open(folder, "--record"), Counters(float)

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The answers; an outage passes through unrecorded."""
        return list(await asyncio.gather(*(self._one(query, topk) for query in queries)))

    async def ready(self) -> bool:
        return await self._inner.ready()

    async def close(self) -> None:
        await self._inner.close()
        await self._store.close()

    def counters(self) -> dict[str, float]:
        return {**counters_of(self._inner), **self._counters}

    def facts(self) -> dict[str, Any]:
        return {**facts_of(self._inner), "recording": True}

    async def _one(self, query: str, topk: int) -> list[Document]:
        key = _key(query, topk)
        try:
            raw = await self._store.get(key)
            if raw is None:
                (documents,) = await self._inner.search([query], topk)
                # What another worker recorded a moment ago is the answer.
                recorded = _ENCODER.encode(Recorded(query, topk, documents))
                raw = await self._store.put(key, recorded, once=True)
                self._counters["recorded"] += 1
            else:
                note(cache="record")
        except StoreError as error:
            # An answer that the replay would not have must not enter the run.
            raise BackendError("record_failed", str(error)) from error
        return _DECODER.decode(raw).documents


class ReplayBackend:
    """Answers from a record alone.

    Raises:
        UserError: no record there.
    """

    keep_s = float("inf")

    def __init__(self, folder: Path) -> None:
        meta = read_record_meta(folder)
        self.name, self.fingerprint = meta.backend, meta.fingerprint
        self._store, self._counters = _open(folder, "--replay"), Counters(float)

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The recorded answers.

        Raises:
            BackendError: ``replay_miss``: this was not asked, or not answered, when the record was made.
        """
        return [await self._one(query, topk) for query in queries]

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        await self._store.close()

    def counters(self) -> dict[str, float]:
        return dict(self._counters)

    def facts(self) -> dict[str, Any]:
        return {"replaying": True}

    async def _one(self, query: str, topk: int) -> list[Document]:
        try:
            raw = await self._store.get(_key(query, topk))
        except StoreError as error:
            raise BackendError("replay_failed", str(error)) from error
        if raw is None:
            self._counters["replay_misses"] += 1
            raise BackendError("replay_miss", f"not in the record: topk {topk}, {query[:200]!r}")
        self._counters["replayed"] += 1
        note(cache="replay")
        return _DECODER.decode(raw).documents


def read_record_meta(folder: Path) -> Meta:
    """Whose answers a record holds.

    Raises:
        UserError: no record there.
    """
    try:
        meta = msgspec.json.decode((folder / "meta.json").read_bytes(), type=Meta)
    except (OSError, msgspec.DecodeError) as error:
        raise UserError("--replay", folder, "is no record: make one with --record") from error
    if meta.format != FORMAT:
        raise UserError("--replay", folder, f"has format {meta.format}, this reads {FORMAT}: record it again")
    return meta


def _open(folder: Path, field: str) -> LmdbStore:
    try:
        return LmdbStore(folder / "answers", MAX_GB)
    except UserError as error:
        raise UserError(field, folder, f"cannot be used ({error.remedy})") from error


def _write_meta(folder: Path, meta: Meta) -> Meta:
    """Write it unless one is there; the one that is in force. All workers do this at the same time."""
    path, temporary = folder / "meta.json", folder / f".meta.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(msgspec.json.encode(meta) + b"\n")
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    except OSError as error:
        raise UserError("--record", folder, f"cannot be written ({error.strerror})") from error
    return read_record_meta(folder)
