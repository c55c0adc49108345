"""One worker process: opens the index, serves its socket, stops when told or when the supervisor is gone."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import uvicorn

from scout_protocol.errors import UserError
from scout_tools import log
from scout_tools.app import ToolApp
from scout_tools.backends.base import Backend
from scout_tools.connection import KEEP_ALIVE_S, Connection
from scout_tools.counters import PLACE, Counters
from scout_tools.drain import GRACE_S, drop_new_connections, has_unread
from scout_tools.settings import Settings

if TYPE_CHECKING:
    from scout_tools.index_open import OpenIndex

_DRAINING = PLACE["scout_draining"]
_TURN_S = 0.02  # between two looks at the connections while draining


def make_backend(settings: Settings, opened: OpenIndex | None = None) -> Backend:
    """The backend named in the settings, recorded or replayed where they say so.

    ``module:function`` is called with the settings.

    Args:
        opened: the index of the settings, where it is open already.

    Raises:
        UserError: unknown name, or the backend cannot start.
    """
    if settings.replay is not None:
        from scout_tools.record import ReplayBackend

        return ReplayBackend(settings.replay)
    backend: Backend
    if settings.backend == "bm25":
        from scout_tools.backends.bm25 import BM25Backend

        backend = BM25Backend(opened or settings.index, settings.threads)
    elif settings.backend == "wikipedia" and settings.wiki is not None:
        from scout_tools.backends.wikipedia import WikipediaBackend

        backend = WikipediaBackend(settings.wiki, settings.timeout_s)
    else:
        module, _, function = settings.backend.partition(":")
        try:
            backend = getattr(importlib.import_module(module), function)(settings)
        except (ImportError, AttributeError, ValueError) as error:
            remedy = f"choose bm25, wikipedia, or module:function of your own ({error})"
            raise UserError("--backend", settings.backend, remedy) from error
    if settings.record is None:
        return backend
    from scout_tools.record import RecordingBackend

    return RecordingBackend(backend, settings.record)


def preload(settings: Settings) -> OpenIndex | None:
    """Import what `make_backend` will need, and open the index: before the fork, so that workers share it.

    Raises:
        UserError: the index cannot be opened.
    """
    indexed = settings.replay is None and settings.backend == "bm25"
    names = ["scout_tools.backends.bm25"] if indexed else []
    if settings.record is not None or settings.replay is not None:
        names += ["lmdb", "scout_tools.record"]
    if settings.wiki is not None:
        names += ["lmdb", "scout_tools.backends.wikipedia"]
    for name in names:
        importlib.import_module(name)
    if not indexed:
        return None
    from scout_tools.index_open import OpenIndex

    return OpenIndex(settings.index)


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it accepts, and drains before it stops."""

    def __init__(self, config: uvicorn.Config, app: ToolApp, life: int, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._app, self._life, self._on_ready = app, life, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # The supervisor holds the other end: when it dies, in whatever way, this end reads EOF.
            asyncio.get_running_loop().add_reader(self._life, self._orphaned)
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        if counter % 10 == 0:
            now = asyncio.get_running_loop().time()
            for connection in self._connections:
                connection.sweep(now)
            self._app.publish()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer all that was accepted, then end: see `scout_tools.drain`."""
        self._app.draining = True
        self._app.row.values[_DRAINING] = 1.0
        for sock in sockets or []:
            drop_new_connections(sock)
        for connection in self._connections:
            connection.drain()
        longest_s = self._app.settings.drain_s
        await self._until_closed(min(GRACE_S, longest_s))
        # At least one more turn of the loop, so that whatever stands in the backlog is accepted.
        await asyncio.sleep(0.05)
        for server in self.servers:
            server.close()
        await self._until_closed(longest_s, close_idle=True)
        if self._connections:
            text = f"{len(self._connections)} connections cut off after {longest_s:g} s"
            log.say("warning", "drain_cut", text)
        await super().shutdown(sockets)

    async def _until_closed(self, longest_s: float, close_idle: bool = False) -> None:
        """Wait until no connection is left."""
        for _ in range(max(1, int(longest_s / _TURN_S))):
            if not self._connections or self.force_exit:
                return
            for connection in self._connections if close_idle else ():
                if connection.idle and not has_unread(connection.transport):
                    connection.transport.close()
            await asyncio.sleep(_TURN_S)

    @property
    def _connections(self) -> list[Connection]:
        return cast(list[Connection], list(self.server_state.connections))

    def _orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(self._life)
        self.should_exit = True


class _LogHandler(logging.Handler):
    """uvicorn's own words in our one-line form."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().strip()
        if record.exc_info and record.exc_info[1] is not None:
            text += f" {type(record.exc_info[1]).__name__}: {record.exc_info[1]}"
        log.say(record.levelname.lower(), "uvicorn", text)


def run_worker(
    settings: Settings,
    opened: OpenIndex | None,
    counters: Counters,
    worker: int,
    sock: socket.socket,
    report: int,
    life: int,
) -> int:
    """Serve until told to stop; the body of a forked process.

    Args:
        opened: the index, where the backend needs one.
        counters: of the whole server.
        worker: this worker's place in them.
        report: pipe to the supervisor: ``ready``, or one line that says why this worker cannot start.
        life: pipe whose other end only the supervisor holds.
    """
    # A closed terminal reaches the supervisor too, which stops us in good order.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        app = ToolApp(settings, make_backend(settings, opened), counters, worker)
    except UserError as error:
        os.write(report, str(error).encode())
        return 2
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addHandler(_LogHandler())
    uvicorn_log.propagate = False
    uvicorn_log.setLevel(logging.ERROR)  # its warnings are about requests that we answer and count ourselves
    config = uvicorn.Config(
        app,
        http=cast("type[asyncio.Protocol]", partial(Connection, app)),
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,  # `_Server.shutdown` has waited already
    )

    def ready() -> None:
        os.write(report, b"ready")
        os.close(report)

    server = _Server(config, app, life, ready)
    server.run(sockets=[sock])
    return 0
