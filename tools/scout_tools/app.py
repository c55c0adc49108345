"""The tool server as an ASGI application.

The two POST routes are plain ASGI with msgspec, since thousands of rollouts wait for them; the rest is
Starlette.
"""

from __future__ import annotations

import hmac
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
from starlette.types import Message, Receive, Scope, Send

from scout_protocol.wire import (
    ErrorBody,
    WireError,
    decode_observation_request,
    decode_retrieve_request,
    encode,
)
from scout_tools import log, metrics, openapi
from scout_tools.backends.base import Backend, BackendError, counters_of, facts_of
from scout_tools.counters import HISTOGRAM, PLACE, ROUTES, Counters, Row
from scout_tools.observe import BusyError, Observer, TooMuchError, label_value
from scout_tools.settings import Settings

_JSON = (b"content-type", b"application/json")
_RETRY = (b"retry-after", b"1")
_IN_FLIGHT = PLACE["scout_in_flight"]
_OPEN_PATHS = frozenset({"/health", "/ready"})  # probes hold no token
Reply = tuple[int, bytes, list[tuple[bytes, bytes]]]  # status, body, headers besides the usual
Handler = Callable[[bytes], Awaitable[Reply]]
_REQUESTS = {
    (r, s): PLACE[f'scout_requests_total{{route="{r}",status="{s}xx"}}'] for r in ROUTES for s in (2, 4, 5)
}
_TIMES = {route: HISTOGRAM[f'scout_request_seconds{{route="{route}"}}'] for route in ROUTES}


class _TooLargeError(Exception):
    """The body is over the limit."""


class _GoneError(Exception):
    """The client went away before its body was complete."""


class ToolApp:
    """ASGI application for one worker.

    Args:
        counters: of the whole server; a private one where there is no supervisor.
        worker: this worker's row in them.

    Attributes:
        draining: the worker is about to stop; /ready says so.
    """

    def __init__(
        self, settings: Settings, backend: Backend, counters: Counters | None = None, worker: int = 0
    ) -> None:
        self.settings, self.backend = settings, backend
        self.counters = counters or Counters()
        self.row: Row = self.counters.rows[worker]
        self.row.begin()
        self.row.add("scout_worker_starts_total")
        self.observer = Observer(settings, backend, self.row)
        self.started = time.monotonic()
        self.draining = False
        self._publish = BackendCounters(backend, self.row)
        token = os.environ.get(settings.token_env, "") if settings.token_env else ""
        self._authorization = f"Bearer {token}".encode() if token else b""
        self._hot: dict[str, tuple[str, Handler]] = {
            "/get_observation": ("get_observation", self._observe),
            "/retrieve": ("retrieve", self._retrieve),
        }
        pages = {"/health": self._health, "/ready": self._ready, "/metrics": self._metrics}
        pages |= {"/docs": openapi.docs_page, "/openapi.json": openapi.openapi_json}
        self._rest = Starlette(
            routes=[Route(path, page) for path, page in pages.items()],
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
            lifespan=self._lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._rest(scope, receive, send)
            return
        start = time.perf_counter()
        path = scope["path"]
        hot = self._hot.get(path)
        if self._authorization and path not in _OPEN_PATHS and not self._authorized(scope):
            self.row.add('scout_rejected_total{reason="token"}')
            error = ErrorBody("needs the bearer token", "authorization")
            reply: Reply = 401, encode(error), [(b"www-authenticate", b"Bearer")]
        elif hot is None:
            status = 500

            async def watched(message: Message) -> None:
                nonlocal status
                status = message.get("status", status)
                await send(message)

            await self._rest(scope, receive, watched)
            self._count("other", status // 100, start)
            return
        else:
            self.row.values[_IN_FLIGHT] += 1.0
            try:
                reply = await self._answer(scope, receive, hot[1])
            except _GoneError:
                return
            finally:
                self.row.values[_IN_FLIGHT] -= 1.0
        status, body, extra = reply
        took = b"%.6f" % (time.perf_counter() - start)
        headers = [_JSON, (b"content-length", b"%d" % len(body)), (b"x-process-time", took), *extra]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
        self._count(hot[0] if hot else "other", status // 100, start)

    async def _answer(self, scope: Scope, receive: Receive, handle: Handler) -> Reply:
        try:
            if scope["method"] != "POST":
                error = ErrorBody(f"{scope['path']} takes POST", "method")
                return 405, encode(error), [(b"allow", b"POST")]
            return await handle(await _read(scope, receive, self.settings.max_body_bytes))
        except _TooLargeError:
            return 413, encode(ErrorBody(f"larger than {self.settings.max_body_bytes} bytes", "body")), []
        except TooMuchError:
            limit = self.settings.max_response_bytes
            return (
                413,
                encode(ErrorBody(f"the answer would be larger than {limit} bytes: ask for less", "response")),
                [],
            )
        except WireError as error:
            return 400, encode(ErrorBody(error.detail, error.field)), []
        except BusyError:
            return 503, encode(ErrorBody("too many searches wait already: try again", "queue")), [_RETRY]
        except BackendError as error:
            detail = f"the search backend is unavailable ({error.kind})"
            return 503, encode(ErrorBody(detail, "backend")), [_RETRY]

    async def _observe(self, body: bytes) -> Reply:
        start = time.perf_counter()
        begun = self.observer.begin(decode_observation_request(body))
        outcomes = await self.observer.complete(begun)
        level = outcomes[0][3] if len(outcomes) == 1 else b""
        return 200, self.observer.body(outcomes, start), [(b"x-cache", level)] if level else []

    async def _retrieve(self, body: bytes) -> Reply:
        return 200, await self.observer.retrieve(decode_retrieve_request(body)), []

    def _authorized(self, scope: Scope) -> bool:
        for name, value in scope["headers"]:
            if name == b"authorization":
                return hmac.compare_digest(value, self._authorization)
        return False

    def _count(self, route: str, status: int, start: float) -> None:
        self.row.values[_REQUESTS[route, status]] += 1.0
        self.row.observe(_TIMES[route], time.perf_counter() - start)

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
            "draining": self.draining,
            "actions": _by_label(self.row, "scout_actions_total"),
            "infra_errors": _by_label(self.row, "scout_infra_errors_total"),
            **facts_of(self.backend),
        }
        return Response(msgspec.json.encode(facts), media_type="application/json")

    async def _ready(self, request: Request) -> Response:
        """200 only while the backend would answer a search, and the worker takes new work."""
        ready = not self.draining and await self.backend.ready()
        body = msgspec.json.encode({"ready": ready, "backend": self.backend.name})
        return Response(body, status_code=200 if ready else 503, media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        self.publish()
        totals = self.counters.totals() | {"scout_workers": float(len(self.counters.rows))}
        return Response(metrics.prometheus_text(totals), media_type=metrics.CONTENT_TYPE)

    def publish(self) -> None:
        """Put what the backend counts where every worker's /metrics sees it; called once a second."""
        self._publish()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await self.backend.close()


class BackendCounters:
    """Copies a backend's totals (`backends.base.Observable.counters`) into the worker's row.

    They start at nothing in each process; here they go on from what the slot's last process counted.
    """

    def __init__(self, backend: Backend, row: Row) -> None:
        self._backend, self._row, self._base = backend, row, dict(row.read())

    def __call__(self) -> None:
        for name, value in counters_of(self._backend).items():
            series = _series(name)
            self._row.set(series, value + self._base.get(series, 0.0))


_LABELS = {"cache_hits": "level", "upstream_wait_seconds": "reason"}  # else: kind


def _series(name: str) -> str:
    """A backend's name for a total as a Prometheus series; what stands after the colon is its label."""
    family, _, value = name.partition(":")
    label = f'{{{_LABELS.get(family, "kind")}="{label_value(value)}"}}' if value else ""
    return f"scout_{family}_total{label}"


def _by_label(row: Row, family: str) -> dict[str, int]:
    """A family's counts by the value of its only label, without the zeros."""
    found = row.starting_with(f"{family}{{").items()
    return {name.split('"')[1]: int(value) for name, value in found if value}


async def _read(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The whole body, if it is at most ``limit`` bytes; a declared length is enough to refuse it."""
    for name, value in scope["headers"]:
        if name == b"content-length" and int(value) > limit:
            raise _TooLargeError
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body"):
        if len(body) > limit:
            raise _TooLargeError
        return body
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
    log.say("error", "internal_error", f"{request.url.path}: {type(error).__name__}: {error}")
    return Response(encode(ErrorBody("internal error")), status_code=500, media_type="application/json")
