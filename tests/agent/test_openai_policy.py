"""The endpoint policy against a real local server that speaks the chat completions protocol."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode
from scout_agent.openai_policy import OpenAIPolicy, close_turn
from scout_agent.policy import Finish
from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_protocol.records import Author, StopReason, Trace

INFO = "\n\n<information>Doc 1(Title: France) Its capital is Paris.</information>\n\n"
FULL = {  # what the "model" writes when asked after so many observations
    0: "<think>Look it up.</think><search>capital of France</search> and then I would",
    1: "<think>Found.</think><answer>Paris</answer> trailing",
}


class Endpoint:
    """A small model server: applies stop strings as the protocol says, fails as it is told."""

    def __init__(
        self, vllm: bool = False, include_stop: bool = False, failures: list[Any] | None = None
    ) -> None:
        self.vllm, self.include_stop, self.failures = vllm, include_stop, list(failures or [])
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.bodies.append(json.loads(await request.read()))
        self.headers.append(dict(request.headers))
        if self.failures:
            failure = self.failures.pop(0)
            if failure == "hang":
                await asyncio.Event().wait()
            if isinstance(failure, str):
                return web.Response(text=failure)
            return web.json_response(
                {"error": {"message": "sorry"}}, status=failure, headers={"Retry-After": "0"}
            )
        body = self.bodies[-1]
        observations = sum(
            m["content"].count("</information>") for m in body["messages"] if m["role"] != "system"
        )
        text, stop_reason = FULL[observations], None
        for stop in body["stop"]:
            if stop in text:
                text, stop_reason = text[: text.index(stop) + (len(stop) if self.include_stop else 0)], stop
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "finish_reason": "stop",
        }
        if self.vllm:
            choice["stop_reason"] = stop_reason
        return web.json_response(
            {"id": "x", "object": "chat.completion", "choices": [choice], "usage": {"completion_tokens": 9}}
        )


@asynccontextmanager
async def listen(endpoint: Endpoint) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", endpoint.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
def play(tool_server: Any, respond: Any, make_row: Any) -> Callable[..., Trace]:
    def run(endpoint: Endpoint, path: str = "", **options: Any) -> Trace:
        async def tool(_: str, action: str) -> Any:
            assert action == "<think>Look it up.</think><search>capital of France</search>"
            return respond(INFO)

        async def main() -> Trace:
            async with (
                listen(endpoint) as url,
                tool_server(tool) as tool_url,
                HttpTools(tool_url) as tools,
                OpenAIPolicy("m", url + path, backoff_s=0.001, **options) as policy,
            ):
                row, labels = make_row(question="Capital?"), TraceLabels("m", "s")
                return await run_episode(row, policy, tools, EpisodeSettings(), labels)

        return asyncio.run(main())

    return run


@pytest.mark.parametrize("vllm", [False, True])
@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("path", ["", "/v1", "/v1/"])
def test_a_whole_episode_with_the_stop_string_put_back(
    play: Any, vllm: bool, include_stop: bool, path: str
) -> None:
    endpoint = Endpoint(vllm, include_stop)
    trace = play(endpoint, path)
    assert trace.stop_reason is StopReason.ANSWER
    assert [s.text for s in trace.spans if s.author is Author.POLICY] == [
        "<think>Look it up.</think><search>capital of France</search>",
        "<think>Found.</think><answer>Paris</answer>",
    ]
    assert trace.n_policy_tokens is None
    assert trace.extra["turns"] == [{"completion_tokens": 9}, {"completion_tokens": 9}]
    first, second = endpoint.bodies
    assert first["stop"] == ["</search>", "</answer>"] and first["max_tokens"] == 256
    assert first["messages"][-1] == {"role": "user", "content": "Capital?"}
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "user"]
    assert second["messages"][-1]["content"] == INFO


def test_continue_sends_one_growing_assistant_message(play: Any) -> None:
    endpoint = Endpoint(vllm=True)
    assert play(endpoint, style="continue").stop_reason is StopReason.ANSWER
    first, second = endpoint.bodies
    assert "continue_final_message" not in first
    assert second["continue_final_message"] is True and second["add_generation_prompt"] is False
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant"]
    assert second["messages"][-1]["content"] == FULL[0].removesuffix(" and then I would") + INFO


@pytest.mark.parametrize(
    "failures", [[429, 503], [500], ["not json"], ["hang"], ['{"choices": []}'], [429, "hang", 502]]
)
def test_passing_trouble_is_retried(play: Any, failures: list[Any]) -> None:
    endpoint = Endpoint(failures=failures)
    assert play(endpoint, timeout_s=0.2).stop_reason is StopReason.ANSWER
    assert len(endpoint.bodies) == 2 + len(failures)


@pytest.mark.parametrize(
    ("failure", "kind"), [(503, "http_503"), (429, "http_429"), ("hang", "timeout"), ("{", "bad_response")]
)
def test_lasting_trouble_is_an_infra_error_not_a_wrong_answer(play: Any, failure: Any, kind: str) -> None:
    endpoint = Endpoint(failures=[failure] * 9)
    trace = play(endpoint, timeout_s=0.1 if failure == "hang" else 10.0, max_retries=2)
    assert trace.stop_reason is StopReason.INFRA_ERROR and trace.extra["policy_error"] == kind
    assert len(endpoint.bodies) == 3


def test_nobody_listens(make_row: Any) -> None:
    async def main() -> Trace:
        async with (
            HttpTools("http://127.0.0.1:1") as tools,
            OpenAIPolicy("m", "http://127.0.0.1:1", max_retries=1, backoff_s=0.001) as policy,
        ):
            return await run_episode(make_row(), policy, tools, EpisodeSettings(), TraceLabels("m", "s"))

    assert asyncio.run(main()).extra["policy_error"] == "connection:ClientConnectorError"


def test_the_key_is_sent_and_never_shown(
    play: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("SOME_KEY", "sesame-81")
    endpoint = Endpoint(failures=[503])
    trace = play(endpoint, api_key_env="SOME_KEY")
    assert endpoint.headers[0]["Authorization"] == "Bearer sesame-81"
    with pytest.raises(UserError, match="SOME_KEY") as refused:
        play(Endpoint(failures=[401]), api_key_env="SOME_KEY")  # pragma: allowlist secret
    shown = capsys.readouterr()
    assert "sesame-81" not in f"{trace}{refused.value}{caplog.text}{shown.out}{shown.err}"


def test_without_a_key_none_is_sent(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    endpoint = Endpoint()
    play(endpoint)
    assert "Authorization" not in endpoint.headers[0]


@pytest.mark.parametrize("status", [400, 404, 422])
def test_a_request_that_is_refused_is_the_users_to_fix(play: Any, status: int) -> None:
    endpoint = Endpoint(failures=[status])
    with pytest.raises(UserError, match=f"HTTP {status}.*sorry"):
        play(endpoint)
    assert len(endpoint.bodies) == 1


@pytest.mark.parametrize(
    ("text", "finish_reason", "stop_reason", "expected", "finish"),
    [
        ("<search>q", "stop", None, "<search>q</search>", Finish.STOP),
        ("<answer>a", "stop", None, "<answer>a</answer>", Finish.STOP),
        ("<answer>a", "stop", "</answer>", "<answer>a</answer>", Finish.STOP),
        ("<answer>a", "stop", 151645, "<answer>a", Finish.EOS),  # vLLM: a stop token id, not a string
        ("no action", "stop", "</search>", "no action</search>", Finish.STOP),  # closed, never opened
        ("<search>q", "length", None, "<search>q", Finish.LENGTH),
        ("just text", "stop", None, "just text", Finish.EOS),
        ("", "stop", None, "", Finish.EOS),
        (
            "<think>I may <search> later</think>",
            "stop",
            None,
            "<think>I may <search> later</think>",
            Finish.EOS,
        ),
        ("<search>q</search><information>made up", "length", None, "<search>q</search>", Finish.STOP),
    ],
)
def test_close_turn(text: str, finish_reason: str, stop_reason: Any, expected: str, finish: Finish) -> None:
    assert close_turn(text, finish_reason, stop_reason, SEARCH_R1) == (expected, finish)


@pytest.mark.parametrize(
    ("model", "url", "style"), [("", "http://x", "turns"), ("m", "x:80", "turns"), ("m", "http://x", "y")]
)
def test_options_that_cannot_work(model: str, url: str, style: str) -> None:
    with pytest.raises(UserError):
        OpenAIPolicy(model, url, style=style)
