"""A real tool server on a local port, speaking the wire protocol, and small building blocks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from scout_protocol.records import RLRow

Answer = Callable[[str, str], Awaitable[web.Response]]  # (trajectory id, action) -> HTTP response


def observation_response(text: str | dict[str, Any], valid: bool = True) -> web.Response:
    return web.json_response(
        {"observations": [text], "dones": [False], "valids": [valid], "processing_time_ms": 0.1}
    )


@asynccontextmanager
async def serve(answer: Answer) -> AsyncIterator[str]:
    async def handle(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        assert set(body) == {"trajectory_ids", "actions", "finish", "is_last_step", "extra_fields"}
        return await answer(body["trajectory_ids"][0], body["actions"][0])

    app = web.Application()
    app.router.add_post("/get_observation", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def serve_bytes(raw: bytes) -> AsyncIterator[str]:
    """A server that answers every connection with these bytes, HTTP or not."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def row(index: int = 0, gold: str = "Paris", question: str = "", **extra: Any) -> RLRow:
    question = question or f"Question {index}?"
    return RLRow(
        data_source="test",
        prompt=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}],
        ability="fact-reasoning",
        reward_model={"ground_truth": {"target": [gold]}, "style": "rule"},
        extra_info={"index": index, "split": "test", **extra},
        id=f"q{index}",
        question=question,
        golden_answers=[gold],
    )


@pytest.fixture
def make_row() -> Callable[..., RLRow]:
    return row


@pytest.fixture
def tool_server() -> Callable[[Answer], AbstractAsyncContextManager[str]]:
    return serve


@pytest.fixture
def byte_server() -> Callable[[bytes], AbstractAsyncContextManager[str]]:
    return serve_bytes


@pytest.fixture
def respond() -> Callable[..., web.Response]:
    return observation_response
