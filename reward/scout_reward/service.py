"""The scoring service as an ASGI application: POST /score, GET /health, GET /metrics."""

from __future__ import annotations

import asyncio
import os
import time
from bisect import bisect_left
from collections import Counter
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import Span, StopReason
from scout_protocol.wire import ErrorBody
from scout_reward.reading import Reading, read_spans
from scout_reward.score import Score, score
from scout_reward.settings import RewardSettings

MAX_BATCH = 10_000
_YIELD_EVERY = 128  # trajectories between two looks at other requests: some milliseconds
_BUCKETS_S = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10.0)


class Item(msgspec.Struct):
    """One trajectory: ``spans`` as in a trace, or ``policy_texts`` with or without ``tool_texts``.

    ``stop_reason`` "infra_error", or ``infra_failed``: an outage ended it, and it has no reward.
    """

    golden_answers: list[str]
    spans: list[Span] | None = None
    policy_texts: list[str] | None = None
    tool_texts: list[str] = []
    n_policy_tokens: int | None = None
    step: int = 0
    dialect: str | None = None
    stop_reason: StopReason | None = None
    infra_failed: bool = False


class ScoreRequest(msgspec.Struct):
    """POST /score."""

    trajectories: list[Item]


class ScoreResponse(msgspec.Struct):
    """``scores`` in the order of the request, null where there is no reward; ``metrics`` are the numbers."""

    scores: list[Score | None]
    metrics: list[dict[str, float] | None]


class RewardApp:
    """The application with its counters."""

    def __init__(self, settings: RewardSettings, dialect: str, max_body_bytes: int) -> None:
        self.settings, self.dialect, self.max_body_bytes = settings, dialect, max_body_bytes
        get_dialect(dialect)
        self.started = time.monotonic()
        self.requests: Counter[int] = Counter()  # by status
        self.trajectories: Counter[str] = Counter()
        self.total_sum = 0.0
        self.latency_counts, self.latency_sum_s = [0] * (len(_BUCKETS_S) + 1), 0.0
        self._decoder = msgspec.json.Decoder(ScoreRequest)
        self.app = Starlette(
            routes=[
                Route("/score", self._score, methods=["POST"]),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
            ],
            exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        )

    async def _score(self, request: Request) -> Response:
        start = time.perf_counter()
        try:
            status, body = 200, msgspec.json.encode(await self.score_all(await self._read(request)))
        except _RefusedError as error:
            status, body = error.status, msgspec.json.encode(ErrorBody(error.detail, error.field))
        except ClientDisconnect:
            return Response(status_code=499)
        took_s = time.perf_counter() - start
        self.requests[status] += 1
        self.latency_counts[bisect_left(_BUCKETS_S, took_s)] += 1
        self.latency_sum_s += took_s
        headers = {"x-process-time": f"{took_s:.6f}"}
        return Response(body, status_code=status, media_type="application/json", headers=headers)

    async def _read(self, request: Request) -> ScoreRequest:
        pieces: list[bytes] = []
        size = 0
        async for piece in request.stream():
            size += len(piece)
            if size > self.max_body_bytes:
                raise _RefusedError(413, "body", f"larger than {self.max_body_bytes} bytes")
            pieces.append(piece)
        try:
            found = self._decoder.decode(b"".join(pieces))
        except msgspec.ValidationError as error:
            message, _, path = str(error).partition(" - at `$")
            raise _RefusedError(400, path.rstrip("`").lstrip(".") or "body", message) from error
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise _RefusedError(400, "body", f"not valid JSON: {error}") from error
        if len(found.trajectories) > MAX_BATCH:
            raise _RefusedError(413, "trajectories", f"more than {MAX_BATCH} in one request")
        return found

    async def score_all(self, request: ScoreRequest) -> ScoreResponse:
        """The whole batch or nothing; other requests are answered in between."""
        scores: list[Score | None] = []
        for i, item in enumerate(request.trajectories):
            if i and i % _YIELD_EVERY == 0:
                await asyncio.sleep(0)
            try:
                scores.append(self._one(item))
            except UserError as error:
                detail = f"{error.value}: {error.remedy}"
                raise _RefusedError(400, f"trajectories[{i}].{error.field}", detail) from error
        for found in scores:
            self.trajectories["none" if found is None else "scored"] += 1
            self.total_sum += found.total if found else 0.0
        return ScoreResponse(scores, [s.as_metrics() if s else None for s in scores])

    def _one(self, item: Item) -> Score | None:
        if item.infra_failed or item.stop_reason is StopReason.INFRA_ERROR:
            return None
        if (item.spans is None) == (item.policy_texts is None):
            raise UserError("spans", "absent" if item.spans is None else "both", "give spans or policy_texts")
        reading = (
            read_spans(item.spans, item.n_policy_tokens)
            if item.spans is not None
            else Reading(item.policy_texts or [], item.tool_texts, item.n_policy_tokens)
        )
        dialect = get_dialect(item.dialect or self.dialect)
        return score(reading, item.golden_answers, dialect, self.settings, item.step)

    async def _health(self, request: Request) -> Response:
        facts: dict[str, Any] = {
            "status": "healthy",
            "pid": os.getpid(),
            "uptime_s": round(time.monotonic() - self.started, 3),
            "dialect": self.dialect,
            "settings": self.settings,
        }
        return Response(msgspec.json.encode(facts), media_type="application/json")

    async def _metrics(self, request: Request) -> Response:
        """Prometheus' text format, version 0.0.4."""
        lines = ["# TYPE scout_reward_requests_total counter"]
        lines += [
            f'scout_reward_requests_total{{status="{s}"}} {n}' for s, n in sorted(self.requests.items())
        ]
        lines.append("# TYPE scout_reward_trajectories_total counter")
        lines += [
            f'scout_reward_trajectories_total{{result="{kind}"}} {self.trajectories[kind]}'
            for kind in ("scored", "none")
        ]
        lines += ["# TYPE scout_reward_total_sum gauge", f"scout_reward_total_sum {self.total_sum}"]
        lines.append("# TYPE scout_reward_request_seconds histogram")
        below = 0
        for bound, count in zip((*map(str, _BUCKETS_S), "+Inf"), self.latency_counts, strict=True):
            below += count
            lines.append(f'scout_reward_request_seconds_bucket{{le="{bound}"}} {below}')
        lines += [
            f"scout_reward_request_seconds_sum {self.latency_sum_s}",
            f"scout_reward_request_seconds_count {below}",
        ]
        return Response("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


class _RefusedError(Exception):
    def __init__(self, status: int, field: str, detail: str) -> None:
        self.status, self.field, self.detail = status, field, detail


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    detail = error.detail if isinstance(error, HTTPException) else "internal error"
    headers = error.headers if isinstance(error, HTTPException) else None
    body = msgspec.json.encode(ErrorBody(detail, "method" if status == 405 else "path"))
    return Response(body, status_code=status, media_type="application/json", headers=headers)


async def _internal_error(request: Request, error: Exception) -> Response:
    body = msgspec.json.encode(ErrorBody("internal error"))
    return Response(body, status_code=500, media_type="application/json")
