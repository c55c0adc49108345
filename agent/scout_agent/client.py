"""The tool server as the agent sees it: one POST /get_observation per turn, every outcome named."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from scout_agent.tool_access import retry_after_s
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow
from scout_protocol.wire import ObservationRequest, ObservationResponse, encode

_RESPONSE = msgspec.json.Decoder(ObservationResponse)
_MIN_PAUSE_S = 0.05  # between two tries, even where the server says 0
_JITTER = 0.25  # of a wait: clients that were refused together do not come back together


@dataclass(frozen=True, slots=True)
class ToolReply:
    """The outcome of one tool call. ``infra_error`` says the tool was not there: it is not evidence."""

    observation: str
    valid: bool
    done: bool
    latency_s: float
    infra_error: bool = False
    error_kind: str = ""
    cache: str = ""


class Tools(Protocol):
    """Anything that answers an action with an observation. Never raises for an outage."""

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply: ...


class RowTools(Protocol):
    """Tools that depend on the question, such as a control; the episode loop asks for the row's own."""

    def for_row(self, row: RLRow) -> Tools:
        """The tools for one trajectory on this row."""
        ...


class HttpTools:
    """A client for one tool server; use as an async context manager.

    Args:
        url: base URL, e.g. ``http://127.0.0.1:5000``.
        timeout_s: per call, over all: also for the waits that a busy server asks for.
        max_connections: requests in flight at once.
        token: bearer token, where the server asks for one; see `tool_access`.

    Raises:
        UserError: the URL is not one.
    """

    def __init__(
        self, url: str, timeout_s: float = 30.0, max_connections: int = 256, token: str = ""
    ) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            usable = False
        if not usable:
            raise UserError("tools", url, "give the tool server's base URL, e.g. http://127.0.0.1:5000")
        self.url, self.timeout_s, self.max_connections = url.rstrip("/"), timeout_s, max_connections
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpTools:
        # trust_env stays off: the tool server is ours, a proxy in the environment must not stand between.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),  # `call` has the clock: it also runs between tries
            connector=aiohttp.TCPConnector(limit=self.max_connections),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> ToolReply:
        """Send one action. An outage comes back as a reply with ``infra_error`` and its kind.

        A server that is full says so: a 503 whose ``Retry-After`` fits into the rest of the call's time is
        waited for and asked again. A 503 without it, or with a longer one, is an outage at once.
        """
        session, start = self._session, time.perf_counter()
        if session is None:
            raise RuntimeError("HttpTools is not open: use `async with HttpTools(url) as tools`")
        body = encode(ObservationRequest([trajectory_id], [action], [False], [is_last_step], [{}]))
        try:
            async with asyncio.timeout(self.timeout_s):
                while True:
                    status, headers, raw = await self._post(session, body)
                    wait_s = retry_after_s(headers.get("Retry-After", "")) if status == 503 else None
                    pause_s = max(wait_s or 0.0, _MIN_PAUSE_S) * (1.0 + _JITTER * random.random())
                    if wait_s is None or time.perf_counter() - start + pause_s >= self.timeout_s:
                        break
                    await asyncio.sleep(pause_s)
        except TimeoutError:
            return _lost("timeout", start)
        except aiohttp.ClientError as error:
            return _lost(f"connection:{type(error).__name__}", start)
        if status != 200:
            return _lost(f"http_{status}", start)
        return _reply(raw, headers.get("X-Cache", ""), start)

    async def _post(
        self, session: aiohttp.ClientSession, body: bytes
    ) -> tuple[int, Mapping[str, str], bytes]:
        url = f"{self.url}/get_observation"
        async with session.post(url, data=body, headers=self._headers) as response:
            return response.status, response.headers, await response.read()


def _lost(kind: str, start: float) -> ToolReply:
    return ToolReply("", False, False, time.perf_counter() - start, infra_error=True, error_kind=kind)


def _reply(raw: bytes, cache: str, start: float) -> ToolReply:
    """A body as a reply. ``cache`` is what the header says; other servers say it in the observation."""
    try:
        reply = _RESPONSE.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # ValidationError is a DecodeError
        return _lost("bad_response", start)
    if not (len(reply.observations) == len(reply.dones) == len(reply.valids) == 1):
        return _lost("bad_response", start)
    observation = reply.observations[0]
    facts: dict[str, Any] = observation if isinstance(observation, dict) else {"obs": observation}
    if not isinstance(facts.get("obs"), str):
        return _lost("bad_response", start)
    return ToolReply(
        observation=facts["obs"],
        valid=reply.valids[0],
        done=reply.dones[0],
        latency_s=time.perf_counter() - start,
        infra_error=bool(facts.get("infra_error", 0.0)),
        error_kind=str(facts.get("error_kind", "")),
        cache=cache or str(facts.get("cache", "")),
    )
