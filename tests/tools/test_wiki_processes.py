"""Real servers with several workers, behind a real forward proxy: limits, network rules, kill -9, replay."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_wikipedia import FakeWikipedia, Reply, running
from tool_helpers import Server, scout, start_server, stop_server
from wiki_conditions import needs_redis
from wiki_helpers import CONTACT, Proxy, forward_proxy, wait_steps

from scout_agent.client import HttpTools

NO_PROXIES = dict.fromkeys(
    ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"), ""
)


@pytest.fixture(scope="module")
def wiki():
    with running() as fake:
        yield fake


@pytest.fixture
def fake(wiki: FakeWikipedia) -> FakeWikipedia:
    wiki.reset()
    return wiki


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    with forward_proxy(tmp_path_factory.mktemp("proxy")) as running_proxy:
        yield running_proxy


@pytest.fixture
def environment(monkeypatch):
    """The environment of the servers that the test starts."""
    for name in NO_PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("SCOUT_WIKI_CONTACT", CONTACT)
    return monkeypatch


@pytest.fixture
def gateway(fake, tmp_path, environment):
    """Start gateways with one cache folder; whatever is left is stopped."""
    started: list[Server] = []
    fake.ca.cert_pem.write_to_path(str(tmp_path / "ca.pem"))

    def start(*args: object, url: str = "", trust: bool = True) -> Server:
        always = ("--backend", "wikipedia", "--wiki-url", url or fake.url, "--cache-dir", tmp_path / "cache")
        trusted = ("--ca-bundle", tmp_path / "ca.pem") if trust else ()
        options = ("--workers", 1, "--wiki-rate", 500, "--timeout-s", 10)
        started.append(start_server(*always, *trusted, *options, *args))
        return started[-1]

    yield start
    for server in started:
        stop_server(server)


def named(fake: FakeWikipedia) -> str:
    return f"https://{{language}}.wikipedia.test:{fake.port}/w/api.php"


def search(server: Server, query: str) -> str | dict:
    return server.act(f"<search>{query}</search>")["observations"][0]


def many(server: Server, queries: list[str], threads: int = 24) -> list[dict]:
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda query: server.act(f"<search>{query}</search>"), queries))


def test_through_the_proxy_of_the_environment(fake, gateway, proxy: Proxy, environment):
    environment.setenv("HTTPS_PROXY", proxy.url.replace("//", "//user:" + "secret@"))
    server = gateway("--language", "de", url=named(fake))
    observation = search(server, "Ada Lovelace")
    assert observation.startswith(
        "\n\n<information>**Doc 1 (Title: Ada Lovelace)**\nURL: https://en.wikipedia.org/wiki/Ada_Lovelace\nAda"
    )
    assert (
        fake.calls[0].host == f"de.wikipedia.test:{fake.port}"
        and CONTACT in fake.calls[0].headers["user-agent"]
    )
    assert "proxy-authorization" not in fake.calls[0].headers
    _, health = server.get("/health")
    assert health["proxy"] == proxy.url and "secret" not in json.dumps(health)
    assert health["upstream"] == f"https://de.wikipedia.test:{fake.port}/w/api.php"
    assert server.get("/ready")[0] == 200


def test_an_explicit_proxy_wins_and_no_proxy_is_heard(fake, gateway, proxy: Proxy, environment):
    environment.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert "Lovelace" in search(gateway("--proxy", proxy.url, url=named(fake)), "Ada Lovelace")
    environment.setenv("NO_PROXY", "wikipedia.test")
    server = gateway("--timeout-s", 2, url=named(fake))
    assert search(server, "vault 1")["error_kind"] == "connect"  # the name is known to the proxy alone


def test_a_dead_proxy_in_the_environment_does_not_keep_rollouts_out(fake, gateway, environment):
    for name in NO_PROXIES:
        environment.setenv(name, "http://127.0.0.1:9")
    inner, outer = gateway(), gateway("--timeout-s", 2, url=named(fake))

    async def rollout(server: Server) -> tuple[bool, str, str]:
        async with HttpTools(server.url) as tools:
            reply = await tools.call("t", "<search>Ada Lovelace</search>")
            return reply.infra_error, reply.error_kind, reply.observation

    assert "English mathematician" in asyncio.run(rollout(inner))[2]  # an upstream on this machine needs none
    assert asyncio.run(rollout(outer))[:2] == (True, "proxy")


def test_certificates(fake, gateway, capfd):
    server = gateway("--workers", 2, trust=False)
    reply = server.act("<search>Ada</search>")
    assert reply["observations"][0]["error_kind"] == "tls" and reply["valids"] == [False]
    assert server.get("/health")[1]["insecure_tls_hosts"] == [] and fake.calls == []
    other = gateway("--insecure-tls-host", "example.org", trust=False)
    assert search(other, "Ada")["error_kind"] == "tls"
    server = gateway("--workers", 2, "--insecure-tls-host", "127.0.0.1", trust=False)
    assert "Lovelace" in search(server, "Ada")
    assert server.get("/health")[1]["insecure_tls_hosts"] == ["127.0.0.1"]
    server.process.send_signal(signal.SIGTERM)
    assert server.process.stderr.read().count("TLS verification is off for 127.0.0.1") == 1


@pytest.mark.parametrize(
    ("change", "args", "words"),
    [
        ({"SCOUT_WIKI_CONTACT": ""}, (), "SCOUT_WIKI_CONTACT: not set: Wikimedia wants a contact"),
        ({"SCOUT_WIKI_CONTACT": "me"}, (), "SCOUT_WIKI_CONTACT: me: "),
        ({}, ("--wiki-url", "http://en.wikipedia.org/w/api.php"), "plain HTTP is refused"),
        ({}, ("--proxy", "socks5://h:1"), "--proxy: socks5://h:1: give http://host:port"),
        ({"https_proxy": "http://" + "u:topsecret" + "@:0"}, (), "HTTPS_PROXY: http://:0: give http"),
        ({}, ("--ca-bundle", "/nowhere.pem"), "--ca-bundle: /nowhere.pem: cannot be read (No such file"),
        ({}, ("--language", "en/../"), "--language: en/../: give a language code"),
        ({}, ("--cache-url", "http://h"), "--cache-url: http://h: give redis://host:port/db"),
        ({}, ("--wiki-rate", "0"), "--wiki-rate: 0.0: must be between"),
        ({}, ("--record", "a", "--replay", "b"), "--record: a: cannot be combined with --replay"),
        ({}, ("--replay", "/nowhere"), "--replay: /nowhere: is no record: make one with --record"),
    ],
)
def test_what_is_refused_at_start(change, args, words, tmp_path):
    environment = {**os.environ, **NO_PROXIES, "SCOUT_WIKI_CONTACT": CONTACT, **change}
    done = scout(
        "serve", "--port", 0, "--backend", "wikipedia", "--cache-dir", tmp_path, *args, env=environment
    )
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert words in done.stderr and "topsecret" not in done.stderr


def test_eight_workers_keep_the_limits_together(fake, gateway):
    fake.latency_s = 0.05
    server = gateway("--workers", 8, "--timeout-s", 30)
    replies = many(server, [f"vault {i}" for i in range(60)], threads=32)
    assert all(reply["valids"] == [True] for reply in replies) and len(fake.calls) == 60
    assert fake.max_in_flight == 3  # never more, and all that is allowed is used
    # of many that want the same, whatever worker they reach, one asks
    fake.reset()
    fake.latency_s = 0.3
    replies = many(server, ["Charles Babbage"] * 40, threads=40)
    assert len(fake.calls) == 1 and len({json.dumps(reply["observations"]) for reply in replies}) == 1


def test_eight_workers_share_one_pace(fake, gateway):
    server = gateway("--workers", 8, "--wiki-rate", 20, "--timeout-s", 30)
    replies = many(server, [f"vault {i}" for i in range(31)], threads=31)
    assert all(reply["valids"] == [True] for reply in replies)
    times = sorted(call.at for call in fake.calls)
    assert len(times) == 31 and times[-1] - times[0] > 1.2  # 30 steps of 50 ms, less the jitter of arrival


def test_what_one_worker_is_told_holds_for_all(fake, gateway):
    fake.latency_s = 0.02
    fake.faults.extend([None, None, Reply(429, b"slow down", {"retry-after": "1"})])
    server = gateway("--workers", 8, "--wiki-rate", 50, "--timeout-s", 20)
    replies = many(server, [f"vault {i}" for i in range(24)])
    assert all(reply["valids"] == [True] for reply in replies) and len(fake.calls) == 25
    times = sorted(call.at for call in fake.calls)
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    silence = max(range(len(gaps)), key=gaps.__getitem__)
    # soon after the 429 nobody asks for a second; if only the one that was told waited, nothing but its own
    # second try would come after the silence
    assert gaps[silence] > 0.9 and silence >= 2 and len(times) - silence - 1 >= 8


def test_a_failing_third_is_flagged_on_exactly_those_actions(fake, gateway):
    bad = {f"vault {i}" for i in range(40) if i % 10 in (1, 4, 8)}
    for query in bad:
        fake.by_query[query] = Reply(500, b"<html>")
    server = gateway("--workers", 2, "--timeout-s", 8)
    queries = [f"vault {i}" for i in range(40)]
    outcome = {}
    for query, reply in zip(queries, many(server, queries, threads=40), strict=True):
        observation = reply["observations"][0]
        outcome[query] = observation["error_kind"] if isinstance(observation, dict) else ""
        assert reply["valids"] == [query not in bad] and reply["dones"] == [False]
    assert {query for query, kind in outcome.items() if kind} == bad
    assert {outcome[query] for query in bad} == {"upstream_error"}
    fake.by_query.clear()
    again = many(server, sorted(bad))  # not kept: asked again, and answered
    assert all(reply["valids"] == [True] for reply in again)


def children(pid: int) -> list[int]:
    return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_kill_9_loses_no_acknowledged_entry(fake, gateway):
    fake.latency_s = 0.01
    server = gateway("--workers", 3, "--timeout-s", 20)
    acknowledged: dict[str, str] = {}
    stop = False

    def load(rank: int) -> None:
        for i in range(rank, 400, 6):
            if stop:
                return
            try:
                reply = server.act(f"<search>vault {i}</search>")
            except OSError:
                continue  # its worker was killed: nothing was acknowledged
            if reply["valids"] == [True]:
                acknowledged[f"vault {i}"] = reply["observations"][0]

    with ThreadPoolExecutor(6) as pool:
        tasks = [pool.submit(load, rank) for rank in range(6)]
        for enough in (25, 50):
            for _ in wait_steps(20.0):
                if len(acknowledged) >= enough:
                    break
            os.kill(children(server.process.pid)[0], signal.SIGKILL)
        for _ in wait_steps(20.0):
            if len(acknowledged) >= 80:
                break
        workers = children(server.process.pid)
        for pid in (server.process.pid, *workers):
            os.kill(pid, signal.SIGKILL)
        stop = True
        for task in tasks:
            task.result()
    assert len(acknowledged) >= 80
    fake.reset()
    fake.everything = Reply(500, b"down")
    server = gateway("--workers", 2)
    replies = many(server, list(acknowledged), threads=4)
    assert [reply["observations"][0] for reply in replies] == list(acknowledged.values())
    assert fake.calls == []
    # and the limits of the dead are free again
    fake.reset()
    assert "vault399" in search(server, "vault 399") and len(fake.calls) == 1


def level(server: Server, query: str) -> str:
    """The cache level that answered, as the header says."""
    body = json.dumps({"trajectory_ids": ["t"], "actions": [f"<search>{query}</search>"]}).encode()
    return server.request("POST", "/get_observation", body)[1]["x-cache"]


def test_a_repeat_is_answered_from_the_rendered_answers(fake, gateway):
    server = gateway("--workers", 1)
    fake.by_query["vault 3"] = Reply(403, b"no")
    asked = (
        "Ada Lovelace",
        " ada  lovelace",
        "ada lovelace?",
        "qmxjsudek",
        "qmxjsudek",
        "vault 3",
        "vault 3",
    )
    levels = [level(server, query) for query in asked]
    # the gateway reads the third as the first; "no results" is for a while only, and an outage is never kept
    assert levels == ["miss", "rendered", "lru", "miss", "lru", "miss", "miss"]
    assert len(fake.calls) == 4
    for _ in wait_steps(10.0):  # what the backend counts is published once a second, and at each scrape
        text = server.request("GET", "/metrics")[2].decode()
        if 'scout_cache_hits_total{level="lru"} 2' in text:
            break
    assert 'scout_cache_hits_total{level="rendered"} 1\n' in text
    assert 'scout_cache_hits_total{level="lru"} 2\n' in text and "scout_cache_misses_total 4\n" in text
    assert level(gateway("--workers", 1, "--cache-mb", 0), "Ada Lovelace") == "store"


def test_what_a_worker_keeps_is_in_the_record_too(fake, gateway, tmp_path):
    recorder = gateway("--workers", 2, "--record", tmp_path / "rec", "--style", "wiki")
    spellings = ("Ada Lovelace", "ada lovelace", "ADA  LOVELACE", "qmxjsudek", " QMXJSUDEK ")
    first = [search(recorder, query) for query in spellings * 4]
    assert level(recorder, "ada Lovelace") in ("rendered", "record") and len(fake.calls) == 2
    stop_server(recorder)
    replayer = gateway("--replay", tmp_path / "rec", "--style", "wiki")
    assert level(replayer, "ada lovelace") == "replay"
    assert [search(replayer, query) for query in reversed(spellings * 4)] == first[::-1]
    assert level(replayer, "aDA lovelace") == "rendered" and len(fake.calls) == 2


def test_replay_equals_record(fake, gateway, tmp_path):
    fake.by_query["vault 3"] = Reply(403, b"no")
    queries = ["Ada Lovelace", "ada  lovelace?", "Mercury", "qmxjsudek", "vault 3", "Lovelcae"]
    actions = [f"<search>{query}</search>" for query in queries]
    recorder = gateway("--workers", 2, "--record", tmp_path / "rec")
    first = recorder.act(*actions)
    assert first["valids"] == [True] * 4 + [False, True]
    stop_server(recorder)
    fake.reset()
    fake.everything = Reply(500, b"down")
    replayer = start_server("--replay", tmp_path / "rec", "--style", "wiki", "--workers", 2)
    try:
        second = replayer.act(*actions, "<search>never asked</search>")
        kept = [0, 1, 2, 3, 5]
        assert [second["observations"][i] for i in kept] == [first["observations"][i] for i in kept]
        assert second["valids"] == [True] * 4 + [False, True, False]
        assert [second["observations"][i]["error_kind"] for i in (4, 6)] == ["replay_miss"] * 2
        health = replayer.get("/health")[1]
        assert health["backend"] == "wikipedia" and health["replaying"] is True
        assert fake.calls == []
    finally:
        stop_server(replayer)


def test_any_backend_can_be_recorded(index_dir, tmp_path, serve):
    recorder = serve("--index", index_dir, "--record", tmp_path / "rec", "--topk", 2)
    observation = search(recorder, "vault7")
    stop_server(recorder)
    assert search(serve("--replay", tmp_path / "rec", "--topk", 2), "vault7") == observation
    assert search(serve("--replay", tmp_path / "rec", "--topk", 1), "vault7")["error_kind"] == "replay_miss"
    done = scout("serve", "--port", 0, "--replay", index_dir)
    assert done.returncode == 2 and "is no record" in done.stderr


def test_the_cache_can_be_looked_into_and_taken_elsewhere(fake, gateway, tmp_path):
    server = gateway()
    for query in ("Ada Lovelace", "Mercury", "qmxjsudek"):
        search(server, query)
    stats = scout("cache", "stats", "--cache-dir", tmp_path / "cache")  # while the server runs
    assert re.search(r"entries +3 +\(no results: 1, of these expired: 0\)", stats.stdout), stats.stderr
    assert "wikipedia:1:127.0.0.1:en:1200" in stats.stdout
    done = scout("cache", "export", tmp_path / "export.jsonl", "--cache-dir", tmp_path / "cache")
    assert done.stdout.strip().endswith("export.jsonl: 2 entries")
    rows = [json.loads(line) for line in (tmp_path / "export.jsonl").read_text().splitlines()]
    assert {row["query"] for row in rows} == {"ada lovelace", "mercury"}
    for added in (2, 0):
        done = scout("cache", "import", tmp_path / "export.jsonl", "--cache-dir", tmp_path / "other")
        assert f"{added} entries added, {2 - added} were there" in done.stdout
    fake.everything = Reply(500, b"down")
    other = gateway("--cache-dir", tmp_path / "other")
    assert "Lovelace" in search(other, "Ada Lovelace")
    broken = tmp_path / "broken.jsonl"
    broken.write_text((tmp_path / "export.jsonl").read_text() + '{"query": 1}\n')
    done = scout("cache", "import", broken, "--cache-dir", tmp_path / "third")
    assert done.returncode == 2 and f"{broken}:3: is no cache entry" in done.stderr
    assert not (tmp_path / "third").exists()
    done = scout("cache", "stats", "--cache-dir", tmp_path / "third")
    assert done.returncode == 2 and "holds no cache" in done.stderr


@needs_redis
def test_redis_is_a_store_for_several_hosts(fake, gateway, tmp_path):
    socket = tmp_path / "redis.sock"
    quiet = ("--port", "0", "--save", "", "--appendonly", "no", "--dir", str(tmp_path))
    process = subprocess.Popen(
        ["redis-server", *quiet, "--unixsocket", str(socket)], stdout=subprocess.DEVNULL
    )
    url = f"unix://{socket}"
    try:
        for _ in wait_steps(10.0):
            if socket.exists():
                break
        assert "Lovelace" in search(gateway("--cache-url", url), "Ada Lovelace")
        assert search(gateway("--cache-url", url), "qmxjsudek")
        # another host: another folder, the same store
        host = gateway("--cache-url", url, "--cache-dir", tmp_path / "elsewhere")
        fake.everything = Reply(403, b"no")
        assert "Lovelace" in search(host, "Ada Lovelace") and len(fake.calls) == 2
        stats = scout("cache", "stats", "--cache-url", url)
        assert re.search(r"entries +2 +\(no results: 1", stats.stdout), stats.stderr
        export = scout("cache", "export", tmp_path / "e.jsonl", "--cache-url", url)
        assert "1 entries" in export.stdout
        fake.everything = None
        process.kill()
        process.wait()
        assert "vault5" in search(host, "vault 5")  # a dead cache is slow, not an outage
    finally:
        process.kill()
        process.wait()
    done = scout("cache", "stats", "--cache-url", url)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1


def test_a_worker_that_holds_a_slot_may_die(fake, gateway):
    fake.latency_s = 30.0
    server = gateway("--workers", 1, "--timeout-s", 40)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(server.act, f"<search>vault {i}</search>") for i in range(3)]
        for _ in wait_steps(10.0):
            if len(fake.calls) == 3:
                break
        fake.latency_s = 0.0
        os.kill(children(server.process.pid)[0], signal.SIGKILL)
        assert all(isinstance(future.exception(timeout=10), OSError) for future in futures)
    start = time.monotonic()
    assert "vault1" in search(server, "vault 1") and time.monotonic() - start < 5.0
