"""Sends a load to a server and writes down every request (asyncio over aiohttp)."""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import aiohttp
import msgspec

from scout_protocol.wire import ObservationRequest, ObservationResponse, encode
from scout_tools.load.mix import Turn

_RESPONSE = msgspec.json.Decoder(ObservationResponse)


@dataclass(frozen=True, slots=True)
class Sample:
    """One request: when it was due and how long its answer took from then, in seconds; how it ended.

    ``outcome`` is ``ok``, ``malformed``, ``infra:kind``, ``http_503``, or ``lost:Error``.
    """

    start_s: float
    latency_s: float
    outcome: str
    cache: str = ""


class Driver:
    """A client of one server; use as an async context manager.

    Args:
        url: base URL.
        connections: open at most so many.
        token: bearer token, where the server asks for one.
    """

    def __init__(self, url: str, connections: int, token: str = "", timeout_s: float = 60.0) -> None:
        self._url, self._connections, self._timeout_s = (
            f"{url.rstrip('/')}/get_observation",
            connections,
            timeout_s,
        )
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self.samples: list[Sample] = []
        self._zero = time.perf_counter()

    async def __aenter__(self) -> Driver:
        connector = aiohttp.TCPConnector(limit=self._connections)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        # A collection over all that is imported takes tens of milliseconds and would be measured as latency.
        gc.collect()
        gc.freeze()
        # trust_env stays off: a proxy in the environment must not stand between us and our server.
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        gc.unfreeze()

    async def ask(self, action: str, trajectory: str = "load", due: float | None = None) -> str:
        """Send one action and write it down; its observation, or "" where there is none.

        Args:
            due: when it should have been sent (`time.perf_counter`). A load that comes at a fixed rate counts
                from there, else a slow answer would hide the wait of all behind it.
        """
        body = encode(ObservationRequest([trajectory], [action], [False], [False], [{}]))
        start = time.perf_counter() if due is None else due
        observation, cache = "", ""
        try:
            async with self._session.post(self._url, data=body, headers=self._headers) as response:
                raw, cache = await response.read(), response.headers.get("x-cache", "")
                outcome = f"http_{response.status}"
                if response.status == 200:
                    outcome, observation = _outcome(_RESPONSE.decode(raw))
        except (TimeoutError, aiohttp.ClientError, msgspec.DecodeError) as error:
            outcome = f"lost:{type(error).__name__}"
        self.samples.append(Sample(start - self._zero, time.perf_counter() - start, outcome, cache))
        return observation

    async def rollouts(
        self, plans: Sequence[Sequence[Turn]], done: Callable[[int], None] | None = None
    ) -> None:
        """Play all rollouts side by side, each with its pauses."""

        async def play(number: int, turns: Sequence[Turn]) -> None:
            for turn in turns:
                await asyncio.sleep(turn.think_s)
                await self.ask(turn.action, f"t{number}")
            if done is not None:
                done(1)

        await asyncio.gather(*(play(number, turns) for number, turns in enumerate(plans)))

    async def closed_loop(self, actions: Sequence[str], clients: int) -> None:
        """``clients`` ask one after the other until every action has been sent."""
        left = iter(actions)

        async def client() -> None:
            for action in left:
                await self.ask(action)

        await asyncio.gather(*(client() for _ in range(clients)))

    async def at_rate(self, actions: Sequence[str], per_second: float) -> None:
        """Send the actions at a fixed rate, whatever the answers do."""
        running: list[Awaitable[str]] = []
        start = time.perf_counter()
        for number, action in enumerate(actions):
            due = start + number / per_second
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            running.append(asyncio.ensure_future(self.ask(action, due=due)))
        await asyncio.gather(*running)


def _outcome(reply: ObservationResponse) -> tuple[str, str]:
    observation = reply.observations[0]
    if isinstance(observation, str):
        return "ok", observation
    text = str(observation.get("obs", ""))
    return (
        f"infra:{observation.get('error_kind', '')}" if observation.get("infra_error") else "malformed"
    ), text


@dataclass(frozen=True, slots=True)
class Summary:
    """A load in a few numbers; latencies in milliseconds."""

    n: int
    wall_s: float
    per_second: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    outcomes: dict[str, int]
    caches: dict[str, int]


def summarise(samples: Sequence[Sample]) -> Summary:
    """The numbers of at least one sample."""
    times = sorted(sample.latency_s * 1000 for sample in samples)
    start = min(sample.start_s for sample in samples)
    wall = max(sample.start_s + sample.latency_s for sample in samples) - start

    def quantile(p: float) -> float:
        return times[min(len(times) - 1, int(p * len(times)))]

    return Summary(
        n=len(times),
        wall_s=wall,
        per_second=len(times) / wall if wall > 0 else 0.0,
        mean_ms=sum(times) / len(times),
        p50_ms=quantile(0.5),
        p95_ms=quantile(0.95),
        p99_ms=quantile(0.99),
        max_ms=times[-1],
        outcomes=dict(Counter(sample.outcome for sample in samples).most_common()),
        caches=dict(Counter(sample.cache for sample in samples if sample.cache).most_common()),
    )
