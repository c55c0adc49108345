"""One worker process: opens the index, serves its socket, stops when told or when the supervisor is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import uvicorn

from scout_protocol.errors import UserError
from scout_tools.app import ToolApp
from scout_tools.backends.base import Backend
from scout_tools.settings import Settings

GRACE_S = 10  # for requests in flight when the server stops


def make_backend(settings: Settings) -> Backend:
    """The backend named in the settings, recorded or replayed where they say so.

    Raises:
        UserError: unknown name, or the backend cannot start.
    """
    if settings.replay is not None:
        from scout_tools.record import ReplayBackend

        return ReplayBackend(settings.replay)
    backend: Backend
    if settings.backend == "bm25":
        from scout_tools.backends.bm25 import BM25Backend

        backend = BM25Backend(Path(settings.index), settings.threads)
    elif settings.backend == "wikipedia" and settings.wiki is not None:
        from scout_tools.backends.wikipedia import WikipediaBackend

        backend = WikipediaBackend(settings.wiki, settings.timeout_s)
    else:
        raise UserError("--backend", settings.backend, "choose bm25 or wikipedia")
    if settings.record is None:
        return backend
    from scout_tools.record import RecordingBackend

    return RecordingBackend(backend, settings.record)


def preload(settings: Settings) -> None:
    """Import what `make_backend` will need: before the fork, so that workers share these pages."""
    if settings.record is not None or settings.replay is not None:
        import lmdb

        import scout_tools.record
    if settings.wiki is not None:
        import lmdb  # noqa: F401

        import scout_tools.backends.wikipedia  # noqa: F401


class _Server(uvicorn.Server):
    """A uvicorn server that reports when it accepts and stops when the life pipe closes."""

    def __init__(self, config: uvicorn.Config, life: int, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._life, self._on_ready = life, on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            # The supervisor holds the other end: when it dies, in whatever way, this end reads EOF.
            asyncio.get_running_loop().add_reader(self._life, self._orphaned)
            self._on_ready()

    def _orphaned(self) -> None:
        asyncio.get_running_loop().remove_reader(self._life)
        self.should_exit = True


def run_worker(settings: Settings, sock: socket.socket, report: int, life: int) -> int:
    """Serve until told to stop; the body of a forked process.

    Args:
        report: pipe to the supervisor: ``ready``, or one line that says why this worker cannot start.
        life: pipe whose other end only the supervisor holds.
    """
    # A closed terminal reaches the supervisor too, which stops us in good order.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        app = ToolApp(settings, make_backend(settings))
    except UserError as error:
        os.write(report, str(error).encode())
        return 2
    config = uvicorn.Config(
        app,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=120,  # rollouts think between turns: 5 s would close under them
        timeout_graceful_shutdown=GRACE_S,
    )

    def ready() -> None:
        os.write(report, b"ready")
        os.close(report)

    server = _Server(config, life, ready)
    server.run(sockets=[sock])
    return 0
