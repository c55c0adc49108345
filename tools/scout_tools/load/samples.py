"""What a load did: one record per request, and all of them in a few numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from scout_protocol.wire import ObservationResponse

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


def outcome(status: int, body: bytes) -> str:
    """How a request ended that was answered at all."""
    if status != 200:
        return f"http_{status}"
    try:
        observation = _RESPONSE.decode(body).observations[0]
    except (msgspec.DecodeError, IndexError) as error:
        return f"lost:{type(error).__name__}"
    if isinstance(observation, str):
        return "ok"
    return f"infra:{observation.get('error_kind', '')}" if observation.get("infra_error") else "malformed"


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
