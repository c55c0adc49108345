"""One client's connection: uvicorn's HTTP protocol, with the limits that it leaves to a proxy in front.

uvicorn waits without end for the rest of a request, takes headers of any size and any number of connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from scout_protocol.wire import ErrorBody, encode
from scout_tools.app import ToolApp
from scout_tools.counters import PLACE

MAX_HEADER_BYTES = 64 << 10
KEEP_ALIVE_S = 120  # rollouts think between turns: 5 s would close under them
_CONNECTIONS = PLACE["scout_connections"]


class Connection(HttpToolsProtocol):
    """uvicorn's protocol, with deadlines. `sweep` must be called about once a second on each.

    Args:
        tool_app: the worker's application: its settings hold the limits, its ``draining`` says when to end.
        kwargs: what uvicorn hands to a protocol.
    """

    def __init__(self, tool_app: ToolApp, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._tool_app, self._row = tool_app, tool_app.row
        # Since when we wait: for the rest of a request, for a first byte, or for the client to read.
        self._reading_since: float | None = None
        self._idle_since = self._stuck_since = 0.0
        self._header_bytes = self._begun = 0  # of the request that is being read; requests so far
        self._in_headers = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._row.values[_CONNECTIONS] += 1.0
        if len(self.connections) > self._tool_app.settings.max_connections:
            self._refuse(503, ErrorBody("too many connections: try again", "connection"), "connections")

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._row.values[_CONNECTIONS] -= 1.0

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        begun, was_in_headers = self._begun, self._in_headers
        super().data_received(data)
        # Where more than one request lies in one piece, the share of the last one's headers is not known.
        if self._in_headers and self._begun - begun <= (0 if was_in_headers else 1):
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                error = ErrorBody(f"larger than {MAX_HEADER_BYTES} bytes", "headers")
                self._refuse(431, error, "headers")

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client will send no more, but may still read: what it has asked is answered first."""
        if self.idle or self._reading_since is not None:
            return None  # closes
        last = self.pipeline[0][0] if self.pipeline else self.cycle
        last.keep_alive = False
        return True

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._reading_since = self.loop.time()
        self._begun += 1
        self._in_headers, self._header_bytes = True, 0

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()
        if self._tool_app.draining:
            self.cycle.keep_alive = False  # its answer says `Connection: close`

    def on_message_complete(self) -> None:
        self._reading_since = None
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """uvicorn's, without its timer for each request: `sweep` closes what is idle."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def pause_writing(self) -> None:
        self._stuck_since = self.loop.time()
        super().pause_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, ErrorBody("not an HTTP/1.1 request", "request"), "not_http")

    def sweep(self, now: float) -> None:
        """Close the connection if its client is too slow."""
        limit = self._tool_app.settings.read_timeout_s
        if self.transport.is_closing():
            return
        if self.flow.write_paused and now - self._stuck_since > limit:
            self._row.add('scout_rejected_total{reason="slow_reader"}')
            self.transport.abort()  # what it does not read would be kept for ever
        elif self._reading_since is not None:
            if now - self._reading_since > limit and not self.flow.read_paused:
                where = "headers" if self._in_headers else "body"
                error = ErrorBody(f"the request did not arrive within {limit:g} s", where)
                self._refuse(408, error, "slow_request")
        elif self.idle and now - self._idle_since > KEEP_ALIVE_S:
            self.transport.close()

    @property
    def idle(self) -> bool:
        """No request is being read or answered."""
        return self._reading_since is None and (self.cycle is None or self.cycle.response_complete)

    def drain(self) -> None:
        """Have an answer that is on its way say that the connection ends with it."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False

    def _refuse(self, status: int, error: ErrorBody, reason: str) -> None:
        """Answer outside of the application, and close."""
        self._row.add(f'scout_rejected_total{{reason="{reason}"}}')
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.transport.abort()
                return
            # The application may still be about to answer: nothing of that may follow.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = encode(error)
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n" % len(body)
        if status == 503:
            head += b"retry-after: 1\r\n"
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.transport.close()
