"""The two POST routes as a client sees them, on a real server of two processes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest


def search(query: str) -> str:
    return f"<think>hm</think>\n<search> {query} </search>"


def test_search_shows_the_right_document_first(server):
    reply = server.act(search("who designed the analytical engine?"))
    (observation,) = reply["observations"]
    assert observation.startswith("\n\n<information>Doc 1(Title: Charles Babbage) Charles Babbage designed")
    assert observation.endswith("</information>\n\n")
    assert "Doc 2(Title: Ada Lovelace)" in observation and "Doc 4(" not in observation
    assert reply["dones"] == [False] and reply["valids"] == [True]
    assert reply["processing_time_ms"] >= 0.0 and isinstance(reply["queue_time_ms"], float)


def test_time_header_is_in_seconds(server):
    body = json.dumps({"trajectory_ids": ["t"], "actions": [search("engine")]}).encode()
    _, headers, reply = server.request("POST", "/get_observation", body)
    seconds = float(headers["x-process-time"])
    assert json.loads(reply)["processing_time_ms"] / 1000 <= seconds < 5
    assert headers["content-type"] == "application/json"


def test_answer_ends_the_trajectory(server):
    reply = server.act("<think>so</think><answer>Babbage</answer>")
    assert (reply["observations"], reply["dones"], reply["valids"]) == ([""], [True], [True])


def test_verl_tool_close_call(server):
    reply = server.act("", finish=[True], is_last_step=[True])
    assert (reply["observations"], reply["dones"], reply["valids"]) == ([""], [True], [True])


def test_finish_wins_over_a_search(server):
    reply = server.act(search("engine"), finish=[True])
    assert (reply["observations"], reply["dones"], reply["valids"]) == ([""], [True], [True])


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("", "no_action"),
        ("I do not know.", "no_action"),
        ("<search>engine", "no_closing_tag"),
        ("engine</search>", "no_opening_tag"),
        ("<search>  </search>", "empty_query"),
        ("<answer></answer>", "empty_answer"),
        ("<search>a <answer> b</search>", "nested_tag"),
    ],
)
def test_malformed_actions_get_a_hint_and_go_on(server, action, reason):
    reply = server.act(action)
    (observation,) = reply["observations"]
    assert observation["invalid_reason"] == reason
    assert "Invalid action" in observation["obs"]
    assert "infra_error" not in observation
    assert reply["dones"] == [False] and reply["valids"] == [False]


def test_a_batch_keeps_its_order(server):
    actions = [search("vault7 key"), "nothing", "<answer>x</answer>", search("Zürich lake"), search("vault3")]
    reply = server.act(*actions, finish=[False] * 5, is_last_step=[False] * 5, extra_fields=[{"a": 1}] * 5)
    shown = reply["observations"]
    assert "Number 7)" in shown[0].split("Doc 2")[0] and "Zürich" in shown[3] and "Number 3)" in shown[4]
    assert shown[2] == "" and reply["dones"] == [False, False, True, False, False]
    assert reply["valids"] == [True, False, True, True, True]


def test_empty_batch(server):
    reply = server.act()
    assert reply["observations"] == [] and reply["dones"] == [] and reply["valids"] == []


def test_no_hit_is_valid_and_says_so(server):
    reply = server.act(search("xyzzy"), search('?! :( AND OR " * ^'))
    assert all("No results found." in text for text in reply["observations"])
    assert reply["valids"] == [True, True]


def test_a_page_cannot_end_its_observation(server):
    (text,) = server.act(search("attack ends"))["observations"]
    assert text.count("</information>") == 1 and text.rstrip().endswith("</information>")
    assert "<answer>" not in text and "<|im_end|>" not in text and "pwned" in text


@pytest.mark.parametrize(
    "query",
    [
        'title:engine "unbalanced',
        "a AND (",
        "* OR [x TO y]",
        "東京",
        "\\",
        "\0 engine",
        "engine " * 20_000,
        "é" * 90_000,
    ],
)
def test_no_query_is_syntax(server, query):
    reply = server.act(search(query))
    assert reply["valids"] == [True]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (b"{", "body"),
        (b"[1, 2]", "body"),
        (b'{"trajectory_ids": ["t"]}', "actions"),
        (b'{"trajectory_ids": ["t"], "actions": "x"}', "actions"),
        (b'{"trajectory_ids": ["t"], "actions": [5]}', "actions[0]"),
        (b'{"trajectory_ids": ["t"], "actions": [NaN]}', "body"),
        (b'{"trajectory_ids": [], "actions": ["a"]}', "trajectory_ids"),
        (b'{"trajectory_ids": ["t"], "actions": ["a"], "finish": []}', "finish"),
        (b'{"trajectory_ids": ["t"], "actions": ["a"], "finish": ["yes"]}', "finish[0]"),
        (b'{"trajectory_ids": ["t"], "actions": ["a"], "is_last_step": [true, true]}', "is_last_step"),
        (b'{"trajectory_ids": ["t"], "actions": ["a"], "extra_fields": [1]}', "extra_fields[0]"),
        (b'{"trajectory_ids": ["t"], "actions": ["\xff\xfe"]}', "body"),
        (b'{"trajectory_ids": ["t"], "actions": ["a"], "extra_fields": [{"k": ' + b"[" * 10_000, "body"),
        (b'{"trajectory_ids": ["t"], "actions": ["a"], "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", "body"),
    ],
)
def test_bad_bodies_name_the_field_and_the_server_lives(server, body, field):
    status, _, reply = server.request("POST", "/get_observation", body)
    answer = json.loads(reply)
    assert status == 400
    assert answer["field"] == field and answer["error"]
    assert server.act(search("engine"))["valids"] == [True]


def test_too_large_bodies(server):
    status, _, reply = server.request("POST", "/get_observation", b"x" * (50 << 20))
    assert status == 413 and json.loads(reply)["field"] == "body"

    def chunks():  # no Content-Length: only counting can tell
        for _ in range(12):
            yield b"x" * (1 << 20)

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    connection.request(
        "POST", "/retrieve", chunks(), encode_chunked=True, headers={"Transfer-Encoding": "chunked"}
    )
    assert connection.getresponse().status == 413
    connection.close()
    assert server.act(search("engine"))["valids"] == [True]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/get_observation", 405), ("POST", "/health", 405), ("GET", "/nothing", 404)],
)
def test_wrong_method_or_path(server, method, path, status):
    got, _, body = server.request(method, path)
    assert got == status and json.loads(body)["error"]


def test_search_r1_client(server):
    # the request and the reading of Search-R1's generation loop: requests.post(...).json()["result"]
    status, reply = server.post(
        "/retrieve", {"queries": ["engine program", "lake"], "topk": 2, "return_scores": True}
    )
    assert status == 200
    first, second = reply["result"]
    assert len(first) == 2 and len(second) == 1
    contents = first[0]["document"]["contents"]
    assert contents.split("\n")[0] == '"Ada Lovelace"' and contents.split("\n", 1)[1].startswith(
        "Ada Lovelace wrote"
    )
    assert first[0]["document"]["id"] == "a"
    assert first[0]["score"] > first[1]["score"] > 0


def test_no_action_meets_what_is_kept_of_a_retrieve(server):
    """Kept answers of both routes lie side by side: no query may name one of the other's."""
    message = {"queries": ["Zürich lake"], "topk": 3, "return_scores": True}
    for query in ("retrieve 3 True Zürich lake", "\n3 True\nZürich lake", "3 True Zürich lake"):
        for _ in range(8):
            server.post("/retrieve", message)
            (observation,) = server.act(f"<search>{query}</search>")["observations"]
            assert isinstance(observation, str) and observation.startswith("\n\n<information>Doc 1")


def test_retrieve_without_scores_and_defaults(server):
    status, reply = server.post("/retrieve", {"queries": ["engine", ""]})
    assert status == 200
    assert [set(row) for row in reply["result"][0]] == [{"id", "contents"}] * 2
    assert reply["result"][1] == []
    assert server.post("/retrieve", {"queries": ["engine"], "topk": 0})[1]["field"] == "topk"
    assert server.post("/retrieve", {"queries": "engine"})[0] == 400


def test_health_and_ready(server):
    status, facts = server.get("/health")
    assert status == 200 and facts["status"] == "healthy" and facts["backend"] == "bm25"
    assert facts["fingerprint"].startswith("bm25:") and facts["infra_errors"] == {}
    assert server.get("/ready") == (200, {"ready": True, "backend": "bm25"})


def test_many_clients_each_get_their_own_answer(server):
    def client(number: int) -> list[str]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        shown = []
        for turn in range(8):
            i = (number * 8 + turn) % 60
            body = json.dumps({"trajectory_ids": [f"{number}"], "actions": [search(f"vault{i}")]})
            connection.request("POST", "/get_observation", body)
            shown.append(json.loads(connection.getresponse().read())["observations"][0])
        connection.close()
        return shown

    with ThreadPoolExecutor(64) as pool:
        for number, shown in enumerate(pool.map(client, range(64))):
            for turn, text in enumerate(shown):
                i = (number * 8 + turn) % 60
                assert f"The secret of vault{i} is key{i * 7}." in text and text.count("Title:") == 1


def test_other_dialect_and_style(index_dir: Path, serve: Callable):
    options = ("--dialect", "react", "--style", "wiki", "--topk", 1, "--max-chars", 40)
    react = serve("--index", index_dir, "--workers", 1, *options)
    reply = react.act("<call:search>analytical engine</call:search>", "<search>analytical engine</search>")
    assert (
        reply["observations"][0]
        == "\n\n<observation>**Doc 1 (Title: Charles Babb…(truncated)</observation>\n\n"
    )
    assert reply["valids"] == [True, False]
