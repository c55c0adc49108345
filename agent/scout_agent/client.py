"""The tool server as the agent sees it: one POST /get_observation per turn, every outcome named."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol
from urllib.parse import urlsplit

import aiohttp
import msgspec

from scout_protocol.errors import UserError
from scout_protocol.records import RLRow
from scout_protocol.wire import ObservationRequest, ObservationResponse, encode

_RESPONSE = msgspec.json.Decoder(ObservationResponse)


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
        timeout_s: per call, over all.
        max_connections: requests in flight at once.

    Raises:
        UserError: the URL is not one.
    """

    def __init__(self, url: str, timeout_s: float = 30.0, max_connections: int = 256) -> None:
        try:
            parts = urlsplit(url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number
            usable = False
        if not usable:
            raise UserError("tools", url, "give the tool server's base URL, e.g. http://127.0.0.1:5000")
        self.url, self.timeout_s, self.max_connections = url.rstrip("/"), timeout_s, max_connections
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> HttpTools:
        # trust_env stays off: the tool server is ours, a proxy in the environment must not stand between.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
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
        """Send one action. An outage comes back as a reply with ``infra_error`` and its kind."""
        if self._session is None:
            raise RuntimeError("HttpTools is not open: use `async with HttpTools(url) as tools`")
        body = ObservationRequest([trajectory_id], [action], [False], [is_last_step], [{}])
        start = time.perf_counter()

        def lost(kind: str) -> ToolReply:
            return ToolReply("", False, False, time.perf_counter() - start, infra_error=True, error_kind=kind)

        try:
            async with self._session.post(
                f"{self.url}/get_observation", data=encode(body), headers={"Content-Type": "application/json"}
            ) as response:
                raw = await response.read()
                if response.status != 200:
                    return lost(f"http_{response.status}")
                reply = _RESPONSE.decode(raw)
        except TimeoutError:
            return lost("timeout")
        except aiohttp.ClientError as error:
            return lost(f"connection:{type(error).__name__}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # ValidationError is a DecodeError
            return lost("bad_response")
        if not (len(reply.observations) == len(reply.dones) == len(reply.valids) == 1):
            return lost("bad_response")
        observation = reply.observations[0]
        facts: dict[str, Any] = observation if isinstance(observation, dict) else {"obs": observation}
        if not isinstance(facts.get("obs"), str):
            return lost("bad_response")
        return ToolReply(
            observation=facts["obs"],
            valid=reply.valids[0],
            done=reply.dones[0],
            latency_s=time.perf_counter() - start,
            infra_error=bool(facts.get("infra_error", 0.0)),
            error_kind=str(facts.get("error_kind", "")),
            cache=str(facts.get("cache", "")),
        )
