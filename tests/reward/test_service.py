"""The scoring service over HTTP: what it answers, what it refuses, and that it stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_reward.cli import main

Service = Callable[..., str]
RIGHT = {"policy_texts": ["<answer>Paris</answer>"], "golden_answers": ["Paris"]}
WRONG = {"policy_texts": ["<answer>Lyon</answer>"], "golden_answers": ["Paris"]}
LOST = {**RIGHT, "infra_failed": True}
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def ask(url: str, body: Any = None, method: str | None = None) -> tuple[int, str]:
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    try:
        with _OPENER.open(urllib.request.Request(url, data=data, method=method), timeout=30) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def post(url: str, *items: Any) -> Any:
    status, text = ask(f"{url}/score", {"trajectories": items})
    assert status == 200, text
    return json.loads(text)


def test_a_batch_keeps_its_order_and_an_outage_has_no_reward(service: Service) -> None:
    found = post(service(), RIGHT, LOST, WRONG, {**WRONG, "stop_reason": "infra_error"})
    assert [s and s["total"] for s in found["scores"]] == [1.0, None, 0.1, None]
    assert [m and m["acc"] for m in found["metrics"]] == [1.0, None, 0.0, None]
    assert found["scores"][0]["why"] == "exact match"
    assert post(service()) == {"scores": [], "metrics": []}


def test_spans_are_read_by_author(service: Service) -> None:
    def span(author: str, text: str) -> dict[str, str]:
        return {"author": author, "text": text}

    leak = "<information><answer>Paris</answer></information>"
    spans = [
        span("prompt", "<answer>Paris</answer>"),
        span("policy", "<search>q</search>"),
        span("tool", leak),
    ]
    item = {"spans": spans, "golden_answers": ["Paris"]}
    right = {**item, "spans": [*spans, span("policy", "<answer>Paris</answer>")]}
    found = post(service(), item, right)
    assert [s["total"] for s in found["scores"]] == [0.0, 1.0]


def test_settings_step_and_dialect(service: Service) -> None:
    url = service(
        "--set",
        "format_schedule=linear",
        "--set",
        "format_steps=10",
        "--set",
        "step_penalty=0.02",
        "--dialect",
        "react",
    )
    searched = {
        "policy_texts": ["<call:search>q</call:search>", "<answer>Paris</answer>"],
        "golden_answers": ["Paris"],
    }
    found = post(url, {**WRONG, "step": 5}, searched, {**searched, "dialect": "search-r1"})
    assert [s["total"] for s in found["scores"]] == pytest.approx([0.05, 0.98, 1.0])


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, "body"),
        (b"\xff", 400, "body"),
        ({}, 400, "body"),
        ({"trajectories": [{"policy_texts": []}]}, 400, "trajectories[0]"),
        ({"trajectories": [{**RIGHT, "policy_texts": "x"}]}, 400, "trajectories[0].policy_texts"),
        ({"trajectories": [RIGHT, {**RIGHT, "golden_answers": []}]}, 400, "trajectories[1].golden_answers"),
        ({"trajectories": [{"golden_answers": ["x"]}]}, 400, "trajectories[0].spans"),
        ({"trajectories": [{**RIGHT, "spans": []}]}, 400, "trajectories[0].spans"),
        ({"trajectories": [{**RIGHT, "dialect": "xml"}]}, 400, "trajectories[0].dialect"),
        ({"trajectories": [RIGHT] * 10_001}, 413, "trajectories"),
        (b" " * 70_000_000, 413, "body"),
    ],
)
def test_a_wrong_body_is_named(service: Service, body: Any, status: int, field: str) -> None:
    found, text = ask(f"{service()}/score", body)
    assert found == status
    told = json.loads(text)
    assert told["field"] == field and told["error"]


def test_other_paths_and_methods(service: Service) -> None:
    assert ask(f"{service()}/nothing")[0] == 404
    assert ask(f"{service()}/score")[0] == 405


def test_health_says_which_reward_this_is(service: Service) -> None:
    status, text = ask(f"{service()}/health")
    facts = json.loads(text)
    assert status == 200 and facts["status"] == "healthy"
    assert facts["settings"]["format_score"] == 0.1 and facts["settings"]["answer_tags"] == "divide"


def metrics(url: str) -> dict[str, float]:
    lines = [line for line in ask(f"{url}/metrics")[1].splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics_count_what_happened(service: Service) -> None:
    url = service()
    post(url, RIGHT)
    before = metrics(url)
    post(url, RIGHT, WRONG, LOST)
    ask(f"{url}/score", b"{")
    after = metrics(url)

    def grew(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grew('scout_reward_requests_total{status="200"}') == 1
    assert grew('scout_reward_requests_total{status="400"}') == 1
    assert grew('scout_reward_trajectories_total{result="scored"}') == 2
    assert grew('scout_reward_trajectories_total{result="none"}') == 1
    assert grew("scout_reward_total_sum") == pytest.approx(1.1)
    assert grew("scout_reward_request_seconds_count") == 2
    assert (
        after['scout_reward_request_seconds_bucket{le="+Inf"}'] == after["scout_reward_request_seconds_count"]
    )


def test_many_clients_at_once_get_their_own_answers(service: Service) -> None:
    url = service()

    def one(i: int) -> bool:
        item = {"policy_texts": [f"<answer>x{i}</answer>"], "golden_answers": [f"x{i}"]}
        scores = post(url, *[item] * 50, WRONG)["scores"]
        return [s["answer"] for s in scores] == [f"x{i}"] * 50 + ["Lyon"] and scores[0]["total"] == 1.0

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(48)))


def test_the_default_address_is_this_machine_only(service: Service) -> None:
    assert service().startswith("http://127.0.0.1:")


def test_it_refuses_to_start(service: Service) -> None:
    port = service().rsplit(":", 1)[1]
    for arguments, told in (
        (["--port", port], "in use"),
        (["--port", "70000"], "65535"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--set", "step_penalty=2", "--port", "0"], "lower the penalties"),
        (["--max-body-mb", "0"], "--max-body-mb"),
    ):
        with pytest.raises(UserError, match=told):
            main(["serve", *arguments])


def test_it_ends_with_the_process_it_is_told_of(
    start_service: Callable[..., tuple[subprocess.Popen[str], str]],
) -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process, url = start_service("--exit-with", str(other.pid))
    try:
        assert ask(f"{url}/health")[0] == 200
        os.kill(other.pid, signal.SIGKILL)
        other.wait(timeout=10)
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.communicate()
        if other.stdin is not None:
            other.stdin.close()
