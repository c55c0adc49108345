"""Patience, token and cache level, against the real tool server as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from scout_agent.client import HttpTools, ToolReply
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode
from scout_agent.scripted import OraclePolicy
from scout_agent.tool_access import check_token, retry_after_s, token_from_env
from scout_protocol.errors import UserError
from scout_protocol.records import StopReason

Start = Callable[..., str]
TOKEN = "not-a-secret-of-anybody"  # pragma: allowlist secret


FIXED = "scout_tools.backends.fixed:make"


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


@pytest.fixture
def start() -> Iterator[Start]:
    """``start(*options, fixed_ms=…)`` -> the URL of a real server whose backend answers after so long."""
    running: list[subprocess.Popen[str]] = []

    def serve(*options: str, fixed_ms: int = 0, backend: str = FIXED) -> str:
        command = [sys.executable, "-m", "scout_cli.main", "serve", "--port", "0", "--workers", "1"]
        command += ["--backend", backend, "--exit-with", str(os.getpid()), *options]
        env = environment() | {
            "SCOUT_FIXED_MS": str(fixed_ms),
            "SCOUT_FIXED_CHARS": "100",
            "SCOUT_TEST_TOKEN": TOKEN,
        }
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        running.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert "ready at " in line, line
        return line.split("ready at ")[1].split()[0]

    yield serve
    for process in running:
        process.terminate()
        process.wait(30)
        assert process.stdout is not None
        process.stdout.close()


def searches(url: str, n: int, timeout_s: float, token: str = "") -> list[ToolReply]:
    """``n`` different searches at once."""

    async def ask() -> list[ToolReply]:
        async with HttpTools(url, timeout_s, token=token) as tools:
            calls = (tools.call(f"t{i}", f"<search>query {i}</search>") for i in range(n))
            return list(await asyncio.gather(*calls))

    return asyncio.run(ask())


def rejected(url: str) -> float:
    """How many searches the server has turned away because it was full."""
    text = urllib.request.urlopen(f"{url}/metrics", timeout=10).read().decode()
    lines = [
        line for line in text.splitlines() if line.startswith('scout_rejected_total{reason="queue_full"}')
    ]
    return sum(float(line.split()[-1]) for line in lines)


def test_a_full_server_is_waited_for(start: Start) -> None:
    url = start("--max-actions", "1", "--max-queue", "1", fixed_ms=50)
    replies = searches(url, 4, timeout_s=300.0)
    assert rejected(url) >= 1  # 503 with Retry-After: 1 was really sent
    assert [reply.error_kind for reply in replies] == [""] * 4
    assert all(reply.valid and "query" in reply.observation for reply in replies)
    assert max(reply.latency_s for reply in replies) >= 1.0  # the wait is part of the call


def test_a_server_that_stays_full_is_an_outage_within_the_calls_time(start: Start) -> None:
    url = start("--max-actions", "1", "--max-queue", "1", fixed_ms=20_000)

    async def ask() -> ToolReply:
        async with HttpTools(url, 60.0) as first, HttpTools(url, 2.5) as second:
            busy = asyncio.create_task(first.call("a", "<search>slow</search>"))
            while not rejected_now(url):  # until the slow one is in the queue
                reply = await second.call("b", "<search>me too</search>")
            busy.cancel()
            return reply

    def rejected_now(url: str) -> bool:
        return rejected(url) >= 1

    reply = asyncio.run(ask())
    assert reply.infra_error and reply.observation == ""
    assert reply.error_kind in ("http_503", "timeout") and reply.latency_s < 20  # not until the queue is free


def answered(tool_server: Any, *replies: web.Response, timeout_s: float = 30.0) -> tuple[ToolReply, int]:
    """What a call makes of these replies, one a request, and how many it asked for."""
    left = list(replies)

    async def handle(trajectory_id: str, action: str) -> web.Response:
        return left.pop(0)

    async def ask() -> ToolReply:
        async with tool_server(handle) as url, HttpTools(url, timeout_s) as tools:
            return await tools.call("t", "<search>q</search>")

    return asyncio.run(ask()), len(replies) - len(left)


def test_which_503_is_waited_for(tool_server: Any, respond: Any) -> None:
    def busy(header: str | None) -> web.Response:
        return web.Response(status=503, headers={"Retry-After": header} if header is not None else {})

    assert answered(tool_server, busy("0"), busy("0"), respond("page"))[1] == 3
    past = format_datetime(datetime.now(UTC) - timedelta(seconds=60), usegmt=True)
    reply, asked = answered(tool_server, busy(past), respond("page"))
    assert (reply.observation, asked) == ("page", 2)
    for header in (
        None,
        "soon",
        "-1",
        "3600",
    ):  # nothing said, nothing sensible said, longer than the call has
        reply, asked = answered(tool_server, busy(header), respond("page"))
        assert (reply.error_kind, asked) == ("http_503", 1), header


def test_retry_after_in_both_of_its_forms() -> None:
    assert [retry_after_s(text) for text in ("0", " 13 ", "", "x", "1.5", "-3")] == [0.0, 13.0, *[None] * 4]
    later = datetime.now(UTC) + timedelta(seconds=100)
    found = retry_after_s(format_datetime(later, usegmt=True))
    assert found is not None and 0 < found <= 100


def test_the_token_is_sent_and_a_wrong_one_is_named_before_the_run(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = start("--token-env", "SCOUT_TEST_TOKEN")
    assert searches(url, 1, 30.0)[0].error_kind == "http_401"
    assert searches(url, 1, 30.0, TOKEN)[0].error_kind == ""
    with pytest.raises(UserError, match=r"is missing.*--tools-token-env"):
        check_token(url, "")
    with pytest.raises(UserError, match="not the one it asks for") as wrong:
        check_token(url, "a-wrong-token")
    assert "a-wrong-token" not in str(wrong.value)
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    check_token(url, token_from_env("MY_TOKEN"))
    check_token("http://127.0.0.1:1", "")  # nobody there: not the token's fault


@pytest.mark.parametrize("value", [None, "", "two words", "ümlaut", "new\nline"])
def test_a_variable_without_a_token(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN", raising=False)
    if value is not None:
        monkeypatch.setenv("MY_TOKEN", value)
    with pytest.raises(UserError, match=r"\$MY_TOKEN") as error:
        token_from_env("MY_TOKEN")
    assert not value or value not in str(error.value)
    assert token_from_env("") == ""


def test_the_cache_level_is_in_the_trace(start: Start, make_row: Any, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "title": "The same page", "text": "Same for all."}\n')
    build = ["index", "build", str(tmp_path / "corpus.jsonl"), "--index", str(tmp_path / "index")]
    subprocess.run([sys.executable, "-m", "scout_cli.main", *build], check=True, env=environment())
    url = start("--index", str(tmp_path / "index"), backend="bm25")
    settings, labels = EpisodeSettings(), TraceLabels("oracle", "test")

    async def play() -> list[str]:
        async with HttpTools(url) as tools:
            rows = [make_row(i, supporting_titles=["the same page"]) for i in range(2)]
            traces = [await run_episode(row, OraclePolicy(), tools, settings, labels) for row in rows]
        assert all(trace.stop_reason is StopReason.ANSWER for trace in traces)
        return [trace.tool_calls[0].cache for trace in traces]

    body = json.dumps({"trajectory_ids": ["t"], "actions": ["<search>the same page</search>"]}).encode()
    seen = asyncio.run(play())
    with urllib.request.urlopen(urllib.request.Request(f"{url}/get_observation", body), timeout=10) as reply:
        assert reply.headers["X-Cache"] == seen[1] == "rendered"
    assert seen[0] == "miss"
