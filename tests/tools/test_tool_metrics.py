"""/metrics over all workers, /docs, logs, and the memory that the counters share."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from tool_helpers import REPO, Server

from scout_protocol.observation import Document
from scout_tools.app import ToolApp
from scout_tools.backends.base import BackendError
from scout_tools.counters import BUCKETS_S, GAUGES, HISTOGRAM, N_OTHERS, Counters
from scout_tools.metrics import prometheus_text
from scout_tools.settings import Settings


def parsed(text: str) -> dict[str, float]:
    """{series: value} as prometheus-client's own parser reads it."""
    parser = pytest.importorskip("prometheus_client.parser")
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def scrape(server: Server) -> dict[str, float]:
    status, headers, body = server.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    return parsed(body.decode())


def test_all_workers_are_counted_together(index_dir, serve):
    server = serve("--index", index_dir, "--workers", 2)
    for number in range(30):  # each on its own connection: both workers get some
        server.act(f"<search>vault{number % 10}</search>", "<answer>x</answer>")
    server.act("nothing")
    server.request("POST", "/get_observation", b"{")
    server.post("/retrieve", {"queries": ["engine", "engine"]})
    now = scrape(server)
    assert now['scout_requests_total{route="get_observation",status="2xx"}'] == 31
    assert now['scout_requests_total{route="get_observation",status="4xx"}'] == 1
    assert now['scout_requests_total{route="retrieve",status="2xx"}'] == 1
    assert now['scout_actions_total{action="search"}'] == 30
    assert now['scout_actions_total{action="answer"}'] == 30
    assert now['scout_actions_total{action="malformed"}'] == 1
    hits = now['scout_cache_hits_total{level="rendered"}']
    assert hits + now['scout_cache_misses_total{level="rendered"}'] == 32
    assert 10 <= hits <= 20  # ten queries, each new to at most two workers
    assert now['scout_request_seconds_count{route="get_observation"}'] == 32
    assert now['scout_request_seconds_bucket{le="+Inf",route="get_observation"}'] == 32
    assert now["scout_queue_depth"] == 0 and now["scout_in_flight"] == 0 and now["scout_workers"] == 2
    # a dead worker's counts are not lost with it
    pids = children(server)
    os.kill(pids[0], signal.SIGKILL)
    while scrape(server)["scout_worker_starts_total"] < 3:
        pass
    after = scrape(server)
    assert after['scout_actions_total{action="search"}'] == 30
    assert after['scout_request_seconds_count{route="get_observation"}'] == 32


def children(server: Server) -> list[int]:
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return [int(pid) for pid in path.read_text().split()]


def test_histogram_buckets_are_right():
    counters = Counters(2)
    series = HISTOGRAM["scout_search_seconds"]
    times = [0.00005, 0.0001, 0.02, 0.02, 99.0]
    for number, seconds in enumerate(times):
        counters.rows[number % 2].observe(series, seconds)
    found = parsed(prometheus_text(counters.totals()))
    for bound in BUCKETS_S:
        assert found[f'scout_search_seconds_bucket{{le="{bound}"}}'] == sum(t <= bound for t in times)
    assert found["scout_search_seconds_count"] == 5
    assert found["scout_search_seconds_sum"] == pytest.approx(sum(times))


def test_a_row_outlives_its_process_but_not_its_gauges():
    row = Counters(1).rows[0]
    row.begin()
    row.add('scout_infra_errors_total{kind="timeout"}', 3)
    row.set(GAUGES[0], 5)
    row.begin()  # another process takes the place
    row.add('scout_infra_errors_total{kind="timeout"}')
    assert row.read()['scout_infra_errors_total{kind="timeout"}'] == 4 and row.read()[GAUGES[0]] == 0


def test_more_kinds_than_there_is_room_for():
    row = Counters(1).rows[0]
    for number in range(N_OTHERS + 50):
        row.add(f'scout_infra_errors_total{{kind="k{number}"}}')
    row.add('scout_infra_errors_total{kind="' + "x" * 300 + '"}')
    row.add('scout_infra_errors_total{kind="k0"}')
    found = row.starting_with("scout_infra_errors_total")
    assert len(found) == N_OTHERS and found['scout_infra_errors_total{kind="k0"}'] == 2


class Counting:
    """A backend that fails, and that counts what it does."""

    name = fingerprint = "counting"

    def __init__(self) -> None:
        self.calls = 0.0

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        self.calls += 1
        raise BackendError('odd "kind"\n', "detail")

    def counters(self) -> dict[str, float]:
        return {"upstream_calls": self.calls, "cache_hits:lru": 2.0, "upstream_wait_seconds:pace": 1.5}

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        return None


def get_metrics(app: ToolApp) -> dict[str, float]:
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event):
        sent.append(event)

    scope = {"type": "http", "method": "GET", "path": "/metrics", "headers": [], "query_string": b""}
    asyncio.run(app({**scope, "root_path": ""}, receive, send))
    return parsed(sent[1]["body"].decode())


def test_a_backends_counters_and_its_errors_by_kind(tmp_path):
    counters = Counters(1)
    for generation in (1, 2):  # the second takes over the place of the first, as after a crash
        app = ToolApp(Settings(index=tmp_path), Counting(), counters)
        found = asyncio.run(app.observer.complete(["query"]))
        assert json.loads(found[0][0])["error_kind"] == 'odd "kind"\n'
        now = get_metrics(app)
        assert now["scout_upstream_calls_total"] == generation
        assert now['scout_cache_hits_total{level="lru"}'] == 2 * generation
        assert now['scout_upstream_wait_seconds_total{reason="pace"}'] == 1.5 * generation
        assert now['scout_infra_errors_total{kind="odd__kind__"}'] == generation


def test_docs_describe_every_route(server):
    status, _, body = server.request("GET", "/openapi.json")
    spec = json.loads(body)
    assert status == 200 and spec["openapi"].startswith("3.")
    assert {"/get_observation", "/retrieve", "/health", "/ready", "/metrics"} <= set(spec["paths"])
    request = spec["components"]["schemas"]["ObservationRequest"]
    assert set(request["required"]) == {"trajectory_ids", "actions"}
    for path, operations in spec["paths"].items():
        for method in operations:
            assert server.request(method.upper(), path)[0] != 404
    status, headers, page = server.request("GET", "/docs")
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert b"/get_observation" in page and b"trajectory_ids" in page
    assert b"src=" not in page and b"http" not in page.split(b"</style>")[1]  # it needs no network


def test_logs_as_json(index_dir, serve):
    server = serve("--index", index_dir, "--workers", 1, "--log-format", "json")
    os.kill(children(server)[0], signal.SIGKILL)
    server.act("<search>engine</search>")
    server.process.terminate()
    _, err = server.process.communicate(timeout=20)
    (line,) = [json.loads(line) for line in err.splitlines()]
    assert line["event"] == "worker_died" and line["level"] == "warning" and line["time"].endswith("+00:00")


def test_the_dashboard_asks_for_series_that_exist(server):
    dashboard = json.loads((REPO / "tools" / "grafana_dashboard.json").read_text())
    known = set(scrape(server)) | {"scout_infra_errors_total", "scout_rejected_total"}
    names = {name.partition("{")[0] for name in known}
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    assert len(asked) >= 8
    import re

    for expression in asked:
        used = set(re.findall(r"\bscout_[a-z_]+", expression))
        assert used, expression
        # the Wikipedia gateway's own series appear with that backend only
        assert used <= names | WIKIPEDIA, used - names


WIKIPEDIA = {
    "scout_upstream_calls_total",
    "scout_upstream_failures_total",
    "scout_upstream_wait_seconds_total",
}
