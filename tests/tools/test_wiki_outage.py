"""What an upstream does wrong: each way has its name, is retried where that helps, and is never kept."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from contextlib import closing

import pytest
from fake_wikipedia import SHARED, FakeWikipedia, Reply, retry_at, running
from wiki_conditions import needs_shared
from wiki_helpers import ask, kind_of, settings_for, with_gateway

from scout_tools.backends.base import BackendError, Counters
from scout_tools.backends.wiki_client import MAX_BACKOFF_S, WikiClient, backoff_s, retry_after_s
from scout_tools.limiter import Gate
from scout_tools.limiter_state import SharedState

HTML = b"<!DOCTYPE html><html><title>Wikimedia Error</title></html>"
MAXLAG = json.dumps({"error": {"code": "maxlag", "info": "Waiting for all: 5.3 seconds lagged."}}).encode()
BUSY = json.dumps({"error": {"info": "Search is currently too busy.  Please try again later."}}).encode()
LIMITED = json.dumps({"error": {"code": "ratelimited", "info": "You've exceeded your rate limit."}}).encode()
BROKEN = json.dumps({"error": {"code": "badvalue", "info": "Unrecognized value."}}).encode()
GOOD_START = b'{"batchcomplete": true, "query": {"pages": ['


@pytest.fixture(scope="module")
def wiki():
    with running() as fake:
        yield fake


@pytest.fixture
def fake(wiki: FakeWikipedia) -> FakeWikipedia:
    wiki.reset()
    return wiki


FAILURES = {
    "429": (Reply(429, b"Too many", {"retry-after": "0"}), "rate_limited", True),
    "429 without retry-after": (Reply(429, HTML), "rate_limited", True),
    "403": (Reply(403, b"blocked"), "upstream_blocked", False),
    "500": (Reply(500, HTML), "upstream_error", True),
    "503": (Reply(503, b"busy", {"retry-after": "0"}), "upstream_busy", True),
    "maxlag in a 200": (Reply(200, MAXLAG, {"retry-after": "0"}), "upstream_busy", True),
    "too busy in a 200": (Reply(200, BUSY), "upstream_busy", True),
    "limited in a 200": (Reply(200, LIMITED, {"retry-after": "0"}), "rate_limited", True),
    "another error in a 200": (Reply(200, BROKEN), "api_error", False),
    "html in a 200": (Reply(200, HTML, {"content-type": "text/html"}), "bad_response", True),
    "plain text in a 200": (Reply(200, b"You are making too many requests"), "rate_limited", True),
    "json that is cut": (Reply(200, GOOD_START), "bad_response", True),
    "json that is a list": (Reply(200, b"[]"), "bad_response", True),
    "json of another shape": (Reply(200, b'{"query": {"pages": [1]}}'), "bad_response", False),
    "json without an answer": (Reply(200, b"{}"), "bad_response", False),
    "a body that ends early": (Reply(200, GOOD_START, truncate=True), "connection_lost", True),
    "a reset": (Reply(reset=True), "connection_lost", True),
    "a redirect": (Reply(302, b"", {"location": "http://example.org/"}), "bad_response", False),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_has_a_name_and_is_not_kept(fake, tmp_path, name):
    reply, kind, retried = FAILURES[name]
    fake.everything = reply

    async def use(backend):
        first = await kind_of(backend, "ada lovelace")
        tries = len(fake.calls)
        fake.everything = None
        pause = backend.facts()["paused_s"]
        assert pause < 3.0
        return first, tries, await ask(backend, "ada lovelace", 3), backend.counters()

    found, tries, later, counters = with_gateway(fake, tmp_path, use, tries=2)
    assert (found, tries) == (kind, 2 if retried else 1)
    assert later[0].title == "Ada Lovelace" and counters["cache_misses"] == 2
    assert counters.get(f"upstream_failures:{kind}", 0) == (
        0 if "shape" in name or "without an" in name else tries
    )


@pytest.mark.parametrize("name", [name for name, (_, _, retried) in FAILURES.items() if retried])
def test_one_failure_is_forgotten(fake, tmp_path, name):
    fake.faults.append(FAILURES[name][0])
    assert with_gateway(fake, tmp_path, lambda b: ask(b, "ada lovelace"))[0].title == "Ada Lovelace"
    assert len(fake.calls) == 2


@pytest.mark.parametrize("form", ["seconds", "date"])
def test_two_429s_with_retry_after_2_then_200(fake, tmp_path, form):
    headers = {"retry-after": "2"} if form == "seconds" else retry_at(2)
    fake.faults.extend([Reply(429, HTML, headers)] * 2)
    start = time.monotonic()
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "ada lovelace"), timeout_s=30.0)
    assert documents[0].title == "Ada Lovelace" and len(fake.calls) == 3
    assert time.monotonic() - start >= 4.0
    gaps = [b.at - a.at for a, b in zip(fake.calls, fake.calls[1:], strict=False)]
    assert min(gaps) >= 2.0


def test_a_pause_that_is_too_long_is_an_outage_at_once_and_for_everyone(fake, tmp_path):
    fake.faults.append(Reply(429, HTML, {"retry-after": "600"}))

    async def use(backend):
        start = time.monotonic()
        kinds = [await kind_of(backend, "ada"), await kind_of(backend, "babbage")]
        return kinds, time.monotonic() - start, await backend.ready()

    kinds, took, ready = with_gateway(fake, tmp_path, use)
    assert kinds == ["rate_limited"] * 2 and took < 3.0 and not ready and len(fake.calls) == 1
    # another process that comes later knows it, too
    assert with_gateway(fake, tmp_path, lambda b: kind_of(b, "vault")) == "rate_limited"
    assert len(fake.calls) == 1


def test_waiting_ends_with_the_action(fake, tmp_path):
    fake.latency_s = 5.0

    async def use(backend):
        start = time.monotonic()
        kinds = await asyncio.gather(*(kind_of(backend, f"vault {i}") for i in range(6)))
        return kinds, time.monotonic() - start

    kinds, took = with_gateway(fake, tmp_path, use, timeout_s=1.0)
    assert sorted(kinds) == ["saturated"] * 3 + ["timeout"] * 3 and took < 3.0


def test_a_second_call_that_fails_is_an_outage_not_a_poorer_answer(fake, tmp_path):
    fake.faults.extend([None, Reply(403, b"no")])
    assert with_gateway(fake, tmp_path, lambda b: kind_of(b, "lovelcae")) == "upstream_blocked"
    assert with_gateway(fake, tmp_path, lambda b: ask(b, "lovelcae"))[0].title == "Ada Lovelace"


def test_the_breaker_stops_asking_and_one_probe_finds_out(fake, tmp_path):
    fake.everything = Reply(500, HTML)
    now = [1000.0]

    async def use() -> None:
        settings, counters = settings_for(fake, tmp_path, tries=1), Counters(float)
        state = SharedState(tmp_path / "s", failures=4, over_s=10.0, cooldown_s=5.0, clock=lambda: now[0])
        gate = Gate(tmp_path, 500.0, 3, counters, state)
        client = WikiClient(settings, gate, counters)
        loop = asyncio.get_running_loop()

        async def kind() -> str:
            try:
                await client.call({"meta": "siteinfo"}, loop.time() + 5.0)
            except BackendError as error:
                return error.kind
            return ""

        for _ in range(8):  # many failures at once are no outage yet: they may be a few bad queries
            assert await kind() == "upstream_error"
        now[0] += 11.0
        assert await kind() == "upstream_error" and counters["circuit_opened"] == 1
        calls = len(fake.calls)
        assert [await kind() for _ in range(5)] == ["circuit_open"] * 5 and len(fake.calls) == calls
        now[0] += 5.1
        fake.latency_s = 0.2
        found = await asyncio.gather(*(kind() for _ in range(5)))
        assert sorted(found) == ["circuit_open"] * 4 + ["upstream_error"] and len(fake.calls) == calls + 1
        now[0] += 5.1
        assert await kind() == "circuit_open"  # the second cool-down is twice as long
        now[0] += 5.1
        fake.everything = None
        assert [await kind(), await kind()] == ["", ""]
        await client.close()
        gate.close()

    asyncio.run(use())


def test_a_success_between_failures_keeps_the_breaker_closed(tmp_path):
    now = [0.0]
    state = SharedState(tmp_path / "s", failures=3, over_s=1.0, clock=lambda: now[0])
    for _ in range(50):
        now[0] += 0.9
        state.failed()
        state.failed()
        state.succeeded()
    assert state.closed() and state.enter()
    for _ in range(3):
        now[0] += 0.9
        state.failed()
    assert not state.closed() and not state.enter()


def test_a_dead_prober_is_followed_by_another(tmp_path):
    now = [0.0]
    state = SharedState(tmp_path / "s", failures=1, over_s=0.0, cooldown_s=5.0, clock=lambda: now[0])
    assert state.failed() and not state.enter()
    now[0] += 5.1
    assert state.enter() and not state.enter()  # the first one now dies without a word
    now[0] += 5.1
    assert state.enter()


def test_a_clock_that_jumps_back_does_not_stop_the_gate(tmp_path):
    now = [10_000.0]
    state = SharedState(tmp_path / "s", clock=lambda: now[0])
    state.pause(30.0)
    assert 29.0 < state.paused_s() <= 30.0
    state.pause(1.0)
    assert state.paused_s() > 29.0  # a shorter pause does not end a longer one
    now[0] -= 60.0  # without the check, a pause of 90 s
    assert state.paused_s() == 0.0
    state.succeeded()
    state.pause(5.0)
    assert 4.0 < state.paused_s() <= 5.0 and state.closed()
    now[0] += 9_000.0
    assert state.paused_s() == 0.0


def test_without_its_limits_nothing_is_asked(fake, tmp_path):
    async def use(backend):
        first = await ask(backend, "ada lovelace")
        with (
            closing(sqlite3.connect(tmp_path / "pace.sqlite")) as damaged,
            damaged,
        ):  # a full disk looks the same
            for (name,) in damaged.execute("select name from sqlite_master where type = 'table'").fetchall():
                damaged.execute(f'drop table "{name}"')
        again = await ask(backend, "ada lovelace")
        return first == again, await kind_of(backend, "charles babbage")

    assert with_gateway(fake, tmp_path, use) == (True, "limits_unavailable") and len(fake.calls) == 1


def test_backoff_grows_has_jitter_and_a_ceiling():
    for tries in range(1, 12):
        values = {backoff_s(tries) for _ in range(50)}
        full = min(MAX_BACKOFF_S, 0.5 * 2 ** (tries - 1))
        assert len(values) > 10 and min(values) >= full / 2 and max(values) <= full


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "13"}, 13.0),
        ({"retry-after": " 0 "}, 0.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({}, None),
        (
            {"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT", "date": "Sun, 06 Nov 1994 08:49:20 GMT"},
            17.0,
        ),
        ({"retry-after": "Sun, 06 Nov 1994 08:49:37 GMT"}, 0.0),
        ({"retry-after": "Sunday, 06-Nov-94 08:49:37 GMT", "date": "Sun Nov  6 08:49:30 1994"}, 7.0),
    ],
)
def test_retry_after(headers, seconds):
    import httpx

    assert retry_after_s(httpx.Headers(headers)) == seconds


@pytest.mark.shared_data
@needs_shared
def test_recorded_error_bodies_are_outages(fake, tmp_path):
    rows = [json.loads(line) for line in (SHARED / "error_bodies.jsonl").read_text("utf-8").splitlines()]
    expected = {429: "rate_limited", 403: "upstream_blocked"}
    kinds = []
    for index, row in enumerate(rows):
        body = (row["body"] or "").encode()
        headers = {"retry-after": row["headers"]["retry-after"]} if "retry-after" in row["headers"] else {}
        fake.everything = Reply(row["status"] or 200, body, headers)
        kind = with_gateway(fake, tmp_path / str(index), lambda b: kind_of(b, "ada"), tries=1)
        assert kind == expected.get(row["status"], kind) and kind, row["source"]
        kinds.append(kind)
    assert set(kinds) == {"rate_limited", "upstream_blocked", "upstream_busy", "bad_response"}
