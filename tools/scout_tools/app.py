"""The tool server as an ASGI application.

The two POST routes are plain ASGI with msgspec, since thousands of rollouts wait for them; the rest is
Starlette.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from scout_protocol.wire import (
    ErrorBody,
    WireError,
    decode_observation_request,
    decode_retrieve_request,
    encode,
)
from scout_tools.backends.base import Backend, BackendError, facts_of
from scout_tools.observe import Observer
from scout_tools.settings import Settings

_JSON = (b"content-type", b"application/json")
Handler = Callable[[bytes], Awaitable[bytes]]


class _TooLargeError(Exception):
    """The body is over the limit."""


class _GoneError(Exception):
    """The client went away before its body was complete."""


class ToolApp:
    """ASGI application for one worker."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self.settings, self.backend = settings, backend
        self.observer = Observer(settings, backend)
        self.started = time.monotonic()
        self._hot: dict[str, Handler] = {"/get_observation": self._observe, "/retrieve": self._retrieve}
        self._rest = Starlette(
            routes=[Route("/health", self._health), Route("/ready", self._ready)],
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._hot.get(scope["path"]) if scope["type"] == "http" else None
        if handler is None:
            await self._rest(scope, receive, send)
            return
        start = time.perf_counter()
        status, extra = 200, []
        try:
            if scope["method"] != "POST":
                status, extra = 405, [(b"allow", b"POST")]
                body = encode(ErrorBody(f"{scope['path']} takes POST", "method"))
            else:
                body = await handler(await _read(scope, receive, self.settings.max_body_bytes))
        except _TooLargeError:
            status = 413
            body = encode(ErrorBody(f"larger than {self.settings.max_body_bytes} bytes", "body"))
        except WireError as error:
            status, body = 400, encode(ErrorBody(error.detail, error.field))
        except BackendError as error:
            status, extra = 503, [(b"retry-after", b"1")]
            body = encode(ErrorBody(f"the search backend is unavailable ({error.kind})", "backend"))
        except _GoneError:
            return
        took = f"{time.perf_counter() - start:.6f}".encode()
        length = str(len(body)).encode()
        headers = [_JSON, (b"content-length", length), (b"x-process-time", took), *extra]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _observe(self, body: bytes) -> bytes:
        return encode(await self.observer.observe(decode_observation_request(body)))

    async def _retrieve(self, body: bytes) -> bytes:
        return encode(await self.observer.retrieve(decode_retrieve_request(body)))

    async def _health(self, request: Request) -> Response:
        """Facts about this worker; answers as long as the process lives."""
        settings = self.settings
        facts = {
            "status": "healthy",
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self.started, 3),
            "backend": self.backend.name,
            "fingerprint": self.backend.fingerprint,
            "dialect": settings.dialect,
            "style": settings.style,
            "topk": settings.topk,
            "actions": dict(self.observer.actions),
            "infra_errors": dict(self.observer.infra_errors),
            **facts_of(self.backend),
        }
        return Response(msgspec.json.encode(facts), media_type="application/json")

    async def _ready(self, request: Request) -> Response:
        """200 only while the backend would answer a search."""
        ready = await self.backend.ready()
        body = msgspec.json.encode({"ready": ready, "backend": self.backend.name})
        return Response(body, status_code=200 if ready else 503, media_type="application/json")

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.backend.close()


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, if it is at most ``limit`` bytes; a declared length is enough to refuse it."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise _TooLargeError
    message = await receive()
    body: bytes = message.get("body", b"")
    pieces, size = [body], len(body)
    while message["type"] == "http.request" and size <= limit and message.get("more_body"):
        message = await receive()
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
    if message["type"] != "http.request":
        raise _GoneError
    if size > limit:
        raise _TooLargeError
    return b"".join(pieces)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "internal error"
    field = "method" if status == 405 else "path"
    return Response(encode(ErrorBody(detail, field)), status_code=status, media_type="application/json")


async def _internal_error(request: Request, error: Exception) -> Response:
    return Response(encode(ErrorBody("internal error")), status_code=500, media_type="application/json")
