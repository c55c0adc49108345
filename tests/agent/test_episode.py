"""The loop against a real HTTP server: every stop reason, every author, every count."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode, run_episodes
from scout_agent.policy import Finish, PolicyTurn, PolicyUnavailableError, prompt_span
from scout_protocol.errors import UserError
from scout_protocol.records import Author, Span, StopReason, Trace

LABELS = TraceLabels(model="fake", stage="test", step=3, prompt_sha256="abc")
SEARCH = "<think>t</think><search>rivers of France</search>"
ANSWER = "<think>t</think><answer>Paris</answer>"
INFO = "\n\n<information>Doc 1(Title: France) Paris</information>\n\n"


class FakePolicy:
    """Plays a list of turns. Tokens are the characters' code points, so counts can be checked by eye."""

    name = "fake"

    def __init__(self, *turns: Any, tokens: bool = True, start_delay_s: float = 0.0) -> None:
        self.turns, self.tokens, self.start_delay_s = turns, tokens, start_delay_s

    async def start(self, row: Any) -> Any:
        await asyncio.sleep(self.start_delay_s)
        return FakeSession(self, row)


class FakeSession:
    def __init__(self, policy: FakePolicy, row: Any) -> None:
        self.policy, self.next, self.limits = policy, 0, []
        self.prompt = prompt_span(row)
        if policy.tokens:
            self.prompt.token_ids = [ord(c) for c in self.prompt.text]

    async def act(self, max_tokens: int) -> PolicyTurn:
        turn = self.policy.turns[min(self.next, len(self.policy.turns) - 1)]
        self.next += 1
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, float):
            await asyncio.sleep(turn)
            raise AssertionError("the timeout did not come")
        text, finish = turn if isinstance(turn, tuple) else (turn, Finish.STOP)
        if not self.policy.tokens:
            return PolicyTurn(text, finish)
        if len(text) > max_tokens:
            text, finish = text[:max_tokens], Finish.LENGTH
        ids = [ord(c) for c in text]
        return PolicyTurn(text, finish, ids, [-0.5] * len(ids))

    def observe(self, observation: str, max_tokens: int) -> Span:
        if max_tokens < 30:
            raise UserError("max_obs_tokens", max_tokens, "needs at least 30 tokens")
        text = observation[:max_tokens]
        return Span(Author.TOOL, text, [ord(c) for c in text] if self.policy.tokens else None)


def play(tool_server: Any, respond: Any, make_row: Any, policy: FakePolicy, **settings: Any) -> Trace:
    async def answer(_: str, action: str) -> Any:
        return respond(INFO, valid="<search>" in action)

    async def main() -> Trace:
        async with tool_server(answer) as url, HttpTools(url) as tools:
            return await run_episode(make_row(7), policy, tools, EpisodeSettings(**settings), LABELS)

    return asyncio.run(main())


@pytest.fixture
def run(tool_server: Any, respond: Any, make_row: Any) -> Any:
    return lambda policy, **settings: play(tool_server, respond, make_row, policy, **settings)


def test_search_then_answer_is_traced_with_authors_and_counts(run: Any) -> None:
    trace = run(FakePolicy(SEARCH, ANSWER))
    assert trace.stop_reason is StopReason.ANSWER
    assert [s.author for s in trace.spans] == [Author.PROMPT, Author.POLICY, Author.TOOL, Author.POLICY]
    assert [s.text for s in trace.spans] == ["Be brief.\n\nQuestion 7?", SEARCH, INFO, ANSWER]
    assert (trace.n_turns, trace.n_searches) == (2, 1)
    assert trace.n_policy_tokens == len(SEARCH) + len(ANSWER)
    assert trace.n_tool_tokens == len(INFO)
    assert [call.query for call in trace.tool_calls] == ["rivers of France"]
    assert trace.tool_calls[0].valid and trace.tool_calls[0].latency_s > 0
    assert all(len(s.token_ids) == len(s.text) for s in trace.spans)
    assert [s.logprobs is not None for s in trace.spans] == [False, True, False, True]
    assert (trace.question_id, trace.model, trace.stage, trace.step) == ("q7", "fake", "test", 3)
    assert trace.score == {} and trace.extra == {}


def test_without_tokens_counts_are_unknown_not_zero(run: Any) -> None:
    trace = run(FakePolicy(SEARCH, ANSWER, tokens=False))
    assert trace.n_policy_tokens is None and trace.n_tool_tokens is None


@pytest.mark.parametrize(
    ("turns", "settings", "reason", "n_turns", "n_searches"),
    [
        ([ANSWER], {}, StopReason.ANSWER, 1, 0),
        ([SEARCH], {"max_turns": 3}, StopReason.MAX_TURNS, 3, 2),
        (["no tags at all"], {"max_turns": 2}, StopReason.MALFORMED, 2, 0),
        ([("I am done.", Finish.EOS)], {}, StopReason.EOS, 1, 0),
        ([(SEARCH, Finish.EOS), ANSWER], {}, StopReason.ANSWER, 2, 1),  # a complete action counts, EOS or not
        (["<think>" + "x" * 99], {"max_turn_tokens": 50}, StopReason.LENGTH, 1, 0),
        ([SEARCH], {"max_response_tokens": 2 * len(SEARCH) + len(INFO)}, StopReason.LENGTH, 2, 2),
        ([SEARCH], {"max_response_tokens": len(SEARCH) + 10}, StopReason.LENGTH, 1, 1),  # no room for a frame
        ([60.0], {"turn_timeout_s": 0.05}, StopReason.TURN_TIMEOUT, 0, 0),
        ([SEARCH, 60.0], {"trajectory_timeout_s": 0.4}, StopReason.TRAJECTORY_TIMEOUT, 1, 1),
    ],
)
def test_every_stop_reason(
    run: Any, turns: list[Any], settings: dict[str, Any], reason: StopReason, n_turns: int, n_searches: int
) -> None:
    trace = run(FakePolicy(*turns), **settings)
    assert (trace.stop_reason, trace.n_turns, trace.n_searches) == (reason, n_turns, n_searches)


def test_a_turn_that_fills_the_budget_without_room_for_an_observation(run: Any) -> None:
    budget = len(SEARCH)
    trace = run(FakePolicy(SEARCH), max_response_tokens=budget)
    assert trace.stop_reason is StopReason.LENGTH
    assert trace.n_policy_tokens == budget and trace.n_tool_tokens == 0


def test_an_observation_limit_that_never_fits_is_the_users_to_fix(run: Any) -> None:
    with pytest.raises(UserError, match="max_obs_tokens"):
        run(FakePolicy(SEARCH), max_obs_tokens=5)


def test_a_slow_start_counts_towards_the_trajectory(run: Any) -> None:
    trace = run(FakePolicy(ANSWER, start_delay_s=60.0), trajectory_timeout_s=0.05)
    assert trace.stop_reason is StopReason.TRAJECTORY_TIMEOUT and trace.spans == []


def test_a_lost_policy_endpoint_is_an_infra_error(run: Any) -> None:
    trace = run(FakePolicy(SEARCH, PolicyUnavailableError("http_503")))
    assert trace.stop_reason is StopReason.INFRA_ERROR
    assert trace.extra["policy_error"] == "http_503" and trace.n_searches == 1


def test_a_malformed_turn_goes_to_the_tool_and_its_hint_comes_back(run: Any) -> None:
    trace = run(FakePolicy("hm", SEARCH, ANSWER))
    assert trace.stop_reason is StopReason.ANSWER
    assert [call.valid for call in trace.tool_calls] == [False, True]
    assert trace.n_searches == 1 and trace.n_turns == 3


def test_a_defect_in_the_policy_is_raised_not_recorded(run: Any) -> None:
    with pytest.raises(ZeroDivisionError):
        run(FakePolicy(ZeroDivisionError()))


def test_two_hundred_trajectories_at_once(tool_server: Any, respond: Any, make_row: Any) -> None:
    """All 200 wait in the server together: it answers only when the last one has arrived."""
    everyone = asyncio.Event()
    waiting: set[str] = set()
    ids: list[str] = []

    async def answer(trajectory_id: str, action: str) -> Any:
        waiting.add(trajectory_id)
        if len(waiting) == 200:
            everyone.set()
        await everyone.wait()
        return respond(INFO)

    async def main() -> dict[int, Trace]:
        traces = {}
        async with tool_server(answer) as url, HttpTools(url, timeout_s=60) as tools:
            rows = (make_row(i) for i in range(230))
            found = run_episodes(
                rows,
                FakePolicy(SEARCH, ANSWER),
                tools,
                EpisodeSettings(),
                LABELS,
                concurrency=200,
                on_done=lambda trace: ids.append(trace.question_id),
            )
            async for index, trace in found:
                traces[index] = trace
        return traces

    traces = asyncio.run(main())
    assert sorted(traces) == list(range(230))
    assert all(t.stop_reason is StopReason.ANSWER and t.question_id == f"q{i}" for i, t in traces.items())
    assert len({t.trace_id for t in traces.values()}) == 230
    assert sorted(ids) == sorted(f"q{i}" for i in range(230))


def test_an_error_in_one_episode_cancels_the_others(tool_server: Any, respond: Any, make_row: Any) -> None:
    class OneBad(FakePolicy):
        async def start(self, row: Any) -> Any:
            if row.id == "q3":
                raise KeyError("defect")
            return FakeSession(FakePolicy(60.0), row)

    async def answer(_: str, action: str) -> Any:
        return respond(INFO)

    async def main() -> None:
        async with tool_server(answer) as url, HttpTools(url) as tools:
            rows = [make_row(i) for i in range(8)]
            async for _ in run_episodes(rows, OneBad(), tools, EpisodeSettings(), LABELS):
                pass

    with pytest.raises(KeyError, match="defect"):
        asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize(
    "bad",
    [
        {"max_turns": 0},
        {"turn_timeout_s": -1.0},
        {"dialect": "latin"},
        {"max_obs_tokens": 0},
        {"max_same_searches": -1},
    ],
)
def test_settings_that_make_no_sense(bad: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        EpisodeSettings(**bad)


def test_no_concurrency_is_an_error_not_an_empty_run(make_row: Any) -> None:
    async def main() -> None:
        tools = HttpTools("http://127.0.0.1:1")
        async for _ in run_episodes([make_row()], FakePolicy(ANSWER), tools, EpisodeSettings(), LABELS, 0):
            pass

    with pytest.raises(UserError, match="concurrency"):
        asyncio.run(main())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_refused_connection(make_row: Any) -> None:
    async def main() -> Trace:
        async with HttpTools(f"http://127.0.0.1:{free_port()}") as tools:
            return await run_episode(make_row(), FakePolicy(SEARCH, ANSWER), tools, EpisodeSettings(), LABELS)

    trace = asyncio.run(main())
    assert trace.stop_reason is StopReason.INFRA_ERROR
    assert trace.tool_calls[0].error_kind == "connection:ClientConnectorError"
    assert [s.author for s in trace.spans] == [Author.PROMPT, Author.POLICY]  # an outage never becomes text


def test_a_server_that_never_answers(tool_server: Any, make_row: Any) -> None:
    async def answer(_: str, action: str) -> Any:
        await asyncio.Event().wait()

    async def main() -> Trace:
        async with tool_server(answer) as url, HttpTools(url, timeout_s=0.1) as tools:
            return await run_episode(make_row(), FakePolicy(SEARCH), tools, EpisodeSettings(), LABELS)

    trace = asyncio.run(main())
    assert trace.stop_reason is StopReason.INFRA_ERROR and trace.tool_calls[0].error_kind == "timeout"


def http(body: bytes, status: str = "200 OK") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"what is HTTP?\r\n\r\n", "connection:"),
        (http(b"<html>busy</html>", "503 Service Unavailable"), "http_503"),
        (http(b'{"error": "actions"}', "400 Bad Request"), "http_400"),
        (http(b"<html>hello</html>"), "bad_response"),
        (http(b"[]"), "bad_response"),
        (http(b"\xff\xfe\x00"), "bad_response"),
        (http(b"[" * 100_000), "bad_response"),
        (http(b'{"observations":[],"dones":[],"valids":[],"processing_time_ms":1}'), "bad_response"),
        (
            http(b'{"observations":[{"x":1}],"dones":[true],"valids":[true],"processing_time_ms":1}'),
            "bad_response",
        ),
        (
            http(b'{"observations":["a","b"],"dones":[true],"valids":[true],"processing_time_ms":1}'),
            "bad_response",
        ),
        (
            http(b'{"observations":["\xe9\xff"],"dones":[true],"valids":[true],"processing_time_ms":1}'),
            "bad_response",
        ),
        (http(b'{"observations":["a"],"dones":')[:-5], "connection:"),
    ],
)
def test_garbage_from_the_server_is_an_outage(byte_server: Any, make_row: Any, raw: bytes, kind: str) -> None:
    async def main() -> Trace:
        async with byte_server(raw) as url, HttpTools(url, timeout_s=5) as tools:
            return await run_episode(make_row(), FakePolicy(SEARCH, ANSWER), tools, EpisodeSettings(), LABELS)

    trace = asyncio.run(main())
    assert trace.stop_reason is StopReason.INFRA_ERROR
    assert trace.tool_calls[0].error_kind.startswith(kind)


def test_an_outage_that_the_server_reports_itself(tool_server: Any, respond: Any, make_row: Any) -> None:
    async def answer(_: str, action: str) -> Any:
        return respond(
            {"obs": "down", "infra_error": 1.0, "error_kind": "backend_timeout", "cache": "miss"}, False
        )

    async def main() -> Trace:
        async with tool_server(answer) as url, HttpTools(url) as tools:
            return await run_episode(make_row(), FakePolicy(SEARCH, ANSWER), tools, EpisodeSettings(), LABELS)

    trace = asyncio.run(main())
    assert trace.stop_reason is StopReason.INFRA_ERROR
    call = trace.tool_calls[0]
    assert (call.error_kind, call.cache, call.valid) == ("backend_timeout", "miss", False)


@pytest.mark.parametrize("url", ["", "localhost:5000", "ftp://x", "http://", "http://host:port"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(UserError, match="tools"):
        HttpTools(url)


def texts(trace: Trace, author: Author) -> list[str]:
    return [s.text for s in trace.spans if s.author is author]


@pytest.mark.parametrize(("name", "tag"), [("search-r1", "information"), ("react", "observation")])
def test_before_the_last_turn_the_tool_says_so(run: Any, name: str, tag: str) -> None:
    search = {"search-r1": SEARCH, "react": "<call:search>x</call:search>"}[name]
    trace = run(FakePolicy(search, search, ANSWER), max_turns=3, force_answer=True, dialect=name)
    assert trace.stop_reason is StopReason.ANSWER and trace.n_turns == 3 and trace.n_searches == 2
    last = trace.spans[-2]
    assert last.author is Author.TOOL and "last turn" in last.text and last.text.startswith(f"\n\n<{tag}>")
    assert sum("last turn" in t for t in texts(trace, Author.TOOL)) == 1
    assert trace.n_tool_tokens == sum(len(t) for t in texts(trace, Author.TOOL))
    assert trace.extra == {"forced_answer": True}


def test_without_the_option_nothing_is_said_and_the_last_turn_is_the_same(run: Any) -> None:
    trace = run(FakePolicy(SEARCH, SEARCH, ANSWER), max_turns=3)
    assert not any("last turn" in t for t in texts(trace, Author.TOOL)) and trace.extra == {}
    assert trace.stop_reason is StopReason.ANSWER  # an answer on the last allowed turn counts


def test_an_early_answer_is_not_forced_and_one_turn_is_told_at_once(run: Any) -> None:
    assert run(FakePolicy(ANSWER), max_turns=3, force_answer=True).extra == {}
    trace = run(FakePolicy(ANSWER), max_turns=1, force_answer=True)
    assert [s.author for s in trace.spans] == [Author.PROMPT, Author.TOOL, Author.POLICY]
    assert trace.stop_reason is StopReason.ANSWER


def test_a_search_in_spite_of_the_last_word_is_not_run(run: Any) -> None:
    trace = run(FakePolicy(SEARCH), max_turns=2, force_answer=True)
    assert trace.stop_reason is StopReason.MAX_TURNS and len(trace.tool_calls) == 1


def test_no_room_for_the_last_word_ends_by_length(run: Any) -> None:
    room = len(SEARCH) + len(INFO) + 10
    trace = run(FakePolicy(SEARCH, ANSWER), max_turns=2, force_answer=True, max_response_tokens=room)
    assert trace.stop_reason is StopReason.LENGTH


def test_an_answer_that_ends_with_the_last_token_counts(run: Any) -> None:
    trace = run(FakePolicy(SEARCH, ANSWER), max_response_tokens=len(SEARCH) + len(INFO) + len(ANSWER))
    assert trace.stop_reason is StopReason.ANSWER


def test_repeated_identical_searches_are_cut(run: Any) -> None:
    again = "<think>other</think><search>  RIVERS of \n France </search>"
    other = "<search>rivers of Peru</search>"
    turns = FakePolicy(SEARCH, again, other, SEARCH, ANSWER)
    trace = run(turns, max_turns=9, max_same_searches=1)
    assert [c.query for c in trace.tool_calls] == ["rivers of France", "rivers of Peru"]
    assert (trace.n_searches, trace.n_turns, trace.extra) == (2, 5, {"cut_searches": 2})
    seen = texts(trace, Author.TOOL)
    assert ["not run again" in t for t in seen] == [False, True, False, True]
    twice = run(FakePolicy(SEARCH, again, other, SEARCH, ANSWER), max_turns=9, max_same_searches=2)
    assert len(twice.tool_calls) == 3 and twice.extra == {"cut_searches": 1}
    free = run(FakePolicy(SEARCH, again, other, SEARCH, ANSWER), max_turns=9)
    assert len(free.tool_calls) == 4 and free.extra == {}


def test_a_policy_that_only_repeats_itself_still_ends(run: Any) -> None:
    trace = run(FakePolicy(SEARCH), max_turns=6, max_same_searches=1)
    assert trace.stop_reason is StopReason.MAX_TURNS and len(trace.tool_calls) == 1


def test_a_straggler_ends_at_its_deadline_with_what_it_has(run: Any) -> None:
    trace = run(FakePolicy(SEARCH, 30.0), trajectory_timeout_s=0.3)
    assert trace.stop_reason is StopReason.TRAJECTORY_TIMEOUT
    assert texts(trace, Author.POLICY) == [SEARCH] and trace.wall_s < 5
