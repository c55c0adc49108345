"""The store that workers share and that outlives them: LMDB in a folder, or Redis for several hosts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol

from scout_protocol.errors import UserError

REDIS_PREFIX = b"scout:search:"


class StoreError(Exception):
    """The store did not do it; whoever asked can go on without."""


class Store(Protocol):
    """Bytes by key."""

    async def get(self, key: bytes) -> bytes | None:
        """The value, if there is one.

        Raises:
            StoreError: it could not be read.
        """
        ...

    async def put(self, key: bytes, value: bytes, ttl_s: float | None = None, once: bool = False) -> bytes:
        """Keep it. When this returns, no kill -9 of this process can lose it.

        Args:
            ttl_s: a store may drop it after this time; it need not.
            once: leave an older value in place.

        Returns:
            What the store now holds.

        Raises:
            StoreError: it could not be written.
        """
        ...

    def items(self) -> AsyncIterator[tuple[bytes, bytes]]:
        """Everything, by key."""
        ...

    async def size_bytes(self) -> int:
        """Space that is used."""
        ...

    async def close(self) -> None: ...


class LmdbStore:
    """One memory-mapped B-tree file. Reads take microseconds and no lock; a commit is on the disk.

    Args:
        folder: made where absent.
        max_gb: size that the file may reach; beyond it nothing new is kept.

    Raises:
        UserError: the folder cannot be used, or holds something else.
    """

    def __init__(self, folder: Path, max_gb: float, read_only: bool = False) -> None:
        import lmdb

        self._lmdb: Any = lmdb
        try:
            if not read_only:
                folder.mkdir(parents=True, exist_ok=True)
            # writemap stays off: a stray write must not reach the file. readahead off: access is random.
            size = max(1 << 20, int(max_gb * (1 << 30)))
            self._env = lmdb.open(
                str(folder), map_size=size, readonly=read_only, readahead=False, max_readers=1024
            )
            self._env.reader_check()  # forget readers that were killed
        except (lmdb.Error, OSError) as error:
            remedy = f"cannot be used as a cache ({error}): choose another folder with --cache-dir"
            raise UserError("--cache-dir", folder, remedy) from error

    async def get(self, key: bytes) -> bytes | None:
        try:
            with self._env.begin() as txn:
                found: bytes | None = txn.get(key)
                return found
        except self._lmdb.Error as error:
            raise StoreError(str(error)) from error

    async def put(self, key: bytes, value: bytes, ttl_s: float | None = None, once: bool = False) -> bytes:
        # A commit waits for the disk, and for other workers' commits: not in the event loop.
        return await asyncio.to_thread(self.put_now, key, value, once)

    def put_now(self, key: bytes, value: bytes, once: bool = False) -> bytes:
        """The same in the calling thread."""
        try:
            with self._env.begin(write=True) as txn:
                if not txn.put(key, value, overwrite=not once):
                    return txn.get(key) or value
                return value
        except self._lmdb.MapFullError as error:
            raise StoreError("full: raise --cache-gb") from error
        except self._lmdb.Error as error:
            raise StoreError(str(error)) from error

    async def items(self) -> AsyncIterator[tuple[bytes, bytes]]:
        with self._env.begin() as txn:
            for key, value in txn.cursor():
                yield key, value

    async def size_bytes(self) -> int:
        info, stat = self._env.info(), self._env.stat()
        return int((info["last_pgno"] + 1) * stat["psize"])

    async def close(self) -> None:
        self._env.close()


class RedisStore:
    """A Redis server, for several hosts. It forgets what its own configuration does not keep.

    Raises:
        UserError: not a URL of Redis.
    """

    def __init__(self, url: str) -> None:
        try:
            import redis.asyncio
            import redis.exceptions
        except ModuleNotFoundError as error:
            raise UserError("--cache-url", url, "needs the redis package: pip install redis") from error
        self._error = redis.exceptions.RedisError
        try:
            self._redis: Any = redis.asyncio.Redis.from_url(
                url, socket_timeout=2.0, socket_connect_timeout=2.0
            )
        except ValueError as error:
            raise UserError("--cache-url", url, f"is not usable ({error})") from error

    async def get(self, key: bytes) -> bytes | None:
        try:
            found: bytes | None = await self._redis.get(REDIS_PREFIX + key)
            return found
        except (self._error, OSError) as error:
            raise StoreError(str(error)) from error

    async def put(self, key: bytes, value: bytes, ttl_s: float | None = None, once: bool = False) -> bytes:
        try:
            name = REDIS_PREFIX + key
            expiry = None if ttl_s is None else max(1, int(ttl_s * 1000))
            if not await self._redis.set(name, value, px=expiry, nx=once):
                return await self._redis.get(name) or value
            return value
        except (self._error, OSError) as error:
            raise StoreError(str(error)) from error

    async def items(self) -> AsyncIterator[tuple[bytes, bytes]]:
        try:
            async for name in self._redis.scan_iter(match=REDIS_PREFIX + b"*", count=1000):
                value = await self._redis.get(name)
                if value is not None:
                    yield name[len(REDIS_PREFIX) :], value
        except (self._error, OSError) as error:
            raise StoreError(str(error)) from error

    async def size_bytes(self) -> int:
        try:
            return int((await self._redis.info("memory"))["used_memory"])
        except (self._error, OSError) as error:
            raise StoreError(str(error)) from error

    async def close(self) -> None:
        await self._redis.aclose()


def open_store(folder: Path, redis_url: str | None, max_gb: float, read_only: bool = False) -> Store:
    """The store of a cache folder, or the Redis behind a URL."""
    if redis_url is not None:
        return RedisStore(redis_url)
    return LmdbStore(folder / "store", max_gb, read_only)
