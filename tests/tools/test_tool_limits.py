"""Hostile and slow clients, and every limit: each gets its own 4xx or 503, and the server lives on."""

from __future__ import annotations

import json
import resource
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from tool_helpers import Server, scout

FIXED = ("--backend", "scout_tools.backends.fixed:make", "--workers", 1)


def search(query: str) -> str:
    return f"<search>{query}</search>"


def talk(server: Server, sent: bytes, then: bytes = b"") -> tuple[int, dict[str, Any]]:
    """Send raw bytes, and read what comes until the server closes: (status, body)."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(sent)
        raw = b""
        while piece := connection.recv(65536):
            raw += piece
        head, _, body = raw.partition(b"\r\n\r\n")
        assert b"connection: close" in head
        return int(head.split()[1]), json.loads(body)


@pytest.fixture(scope="module")
def impatient(index_dir, tmp_path_factory):
    """A server with small limits."""
    from tool_helpers import start_server, stop_server

    options = ("--read-timeout-s", 1, "--max-connections", 8, "--max-actions", 4, "--max-queue", 4)
    running = start_server("--index", index_dir, "--workers", 1, "--max-response-mb", 0.002, *options)
    yield running
    assert stop_server(running) == 0


@pytest.mark.parametrize(
    ("sent", "field"),
    [
        (b"POST /get_observation HTTP/1.1\r\nHost: a\r\nContent-Le", "headers"),
        (b"POST /get_observation HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n{", "body"),
        (b"G", "headers"),
    ],
)
def test_a_client_that_never_finishes_its_request(impatient, sent, field):
    status, body = talk(impatient, sent)
    assert status == 408 and body["field"] == field
    assert impatient.act(search("engine"))["valids"] == [True]


def test_a_client_that_trickles(impatient):
    """Each byte comes in time, the request does not."""
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=20) as connection:
        connection.sendall(b"POST /get_observation HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        stop = threading.Event()

        def trickle() -> None:
            while not stop.wait(0.1):
                try:
                    connection.sendall(b" ")
                except OSError:
                    return

        thread = threading.Thread(target=trickle)
        thread.start()
        try:
            assert connection.recv(65536).startswith(b"HTTP/1.1 408 ")
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    ("sent", "status", "field"),
    [
        (b"GET /" + b"x" * 70_000, 431, "headers"),
        (b"GET / HTTP/1.1\r\nA: " + b"x" * 70_000, 431, "headers"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", 400, "request"),  # TLS
        (b"POST /retrieve HTTP/1.1\r\nContent-Length: -5\r\n\r\n", 400, "request"),
    ],
)
def test_what_is_not_http(impatient, sent, status, field):
    got, body = talk(impatient, sent)
    assert got == status and body["field"] == field
    assert impatient.act(search("engine"))["valids"] == [True]


def test_too_many_connections(impatient):
    held = [socket.create_connection(("127.0.0.1", impatient.port), timeout=20) for _ in range(8)]
    try:
        for connection in held:  # an answer on each: all are open on the server's side as well
            connection.sendall(b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 200")
        status, headers, body = impatient.request("GET", "/ready")
        assert status == 503 and headers["retry-after"] == "1"
        assert json.loads(body)["field"] == "connection"
    finally:
        for connection in held:
            connection.close()
    give_up = time.monotonic() + 10  # until the server has seen that they are closed
    while impatient.request("GET", "/ready")[0] == 503 and time.monotonic() < give_up:
        pass
    assert impatient.act(search("engine"))["valids"] == [True]


def test_too_many_actions_or_documents(impatient):
    message = {"trajectory_ids": list("abcde"), "actions": [search("engine")] * 5}
    status, body = impatient.post("/get_observation", message)
    assert status == 400 and body["field"] == "actions"
    assert impatient.post("/retrieve", {"queries": ["a"] * 5})[1]["field"] == "queries"


def test_an_answer_over_the_limit(impatient):
    many = {"queries": ["secret of vault"] * 4, "topk": 50}
    status, body = impatient.post("/retrieve", many)
    assert status == 413 and body["field"] == "response"
    assert impatient.post("/retrieve", {**many, "topk": 2})[0] == 200


def test_documents_of_one_request_are_bounded(server):
    status, body = server.post("/retrieve", {"queries": ["a"] * 11, "topk": 1000})
    assert status == 400 and body["field"] == "topk"


@pytest.mark.parametrize("text", ["\\ud800", "\\ud83d \\ude00 x", "\\u0000"])
def test_half_a_character(server, text):
    """JSON can spell a lone surrogate, which is no text; whatever it means, it is no outage."""
    body = f'{{"trajectory_ids": ["t"], "actions": ["<search>engine {text}</search>"]}}'.encode()
    status, _, reply = server.request("POST", "/get_observation", body)
    assert status == 400 or json.loads(reply)["valids"] == [True]
    assert server.get("/health")[1]["infra_errors"] == {}


def test_a_full_queue_is_a_503_and_the_rest_is_answered(serve, monkeypatch):
    monkeypatch.setenv("SCOUT_FIXED_MS", "700")
    server = serve(*FIXED, "--max-queue", 4, "--max-actions", 4)
    statuses: list[int] = []
    retry: list[str] = []

    def client(number: int) -> None:
        body = json.dumps({"trajectory_ids": ["t"], "actions": [search(f"q{number}")]}).encode()
        status, headers, _ = server.request("POST", "/get_observation", body)
        statuses.append(status)
        if status == 503:
            retry.append(headers["retry-after"])

    threads = [threading.Thread(target=client, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses.count(503) == 8 and statuses.count(200) == 4
    assert retry == ["1"] * 8
    assert server.act(search("later"))["valids"] == [True]


def test_a_slow_action_becomes_an_outage_in_time(serve, monkeypatch):
    monkeypatch.setenv("SCOUT_FIXED_MS", "20000")
    server = serve(*FIXED, "--timeout-s", 0.3)
    reply = server.act(search("x"), "<answer>y</answer>")
    assert reply["valids"] == [False, True]
    assert reply["observations"][0]["error_kind"] == "timeout" and reply["processing_time_ms"] < 10_000


def test_bearer_token(serve, monkeypatch):
    secret = "k" * 30
    monkeypatch.setenv("SCOUT_TEST_TOKEN", secret)
    server = serve(*FIXED, "--token-env", "SCOUT_TEST_TOKEN", "--log-format", "json")
    body = json.dumps({"trajectory_ids": ["t"], "actions": [search("a")]}).encode()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": secret}):
        status, got, reply = server.request("POST", "/get_observation", body, headers)
        assert status == 401 and got["www-authenticate"] == "Bearer"
        assert json.loads(reply)["field"] == "authorization" and secret.encode() not in reply
    assert server.request("GET", "/metrics")[0] == 401
    allowed = {"Authorization": f"Bearer {secret}"}
    assert server.request("POST", "/get_observation", body, allowed)[0] == 200
    assert server.request("GET", "/metrics", headers=allowed)[0] == 200
    assert server.request("GET", "/health")[0] == server.request("GET", "/ready")[0] == 200
    server.process.terminate()
    out, err = server.process.communicate(timeout=20)
    assert secret not in out + err


def test_a_token_that_is_not_there_is_told_before_the_start():
    done = scout("serve", *FIXED, "--port", 0, "--token-env", "SCOUT_NO_SUCH_TOKEN")
    assert done.returncode == 2 and "--token-env: SCOUT_NO_SUCH_TOKEN" in done.stderr


def limited(n_files: int, *args: object) -> subprocess.CompletedProcess[str]:
    """`scout serve` in a process that may open so many files."""
    command = [
        sys.executable,
        "-m",
        "scout_cli.main",
        "serve",
        *map(str, FIXED),
        "--port",
        "0",
        *map(str, args),
    ]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))

    return subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=limit)


def test_file_descriptors_are_checked_at_start():
    done = limited(256, "--max-connections", 1000)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "needs 1128 open files and this process may have 256" in done.stderr
    assert "at most 128" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-queue", "3"], "--max-queue"),  # below --max-actions: some requests could never be taken
        (["--read-timeout-s", "0"], "--read-timeout-s"),
        (["--cache-mb", "-1"], "--cache-mb"),
        (["--backend", "no.such:thing"], "--backend"),
        (["--backend", "duck"], "choose bm25, wikipedia"),
        (["--backend", "bm25"], "--index"),
    ],
)
def test_bad_options_are_one_line(options, words):
    done = scout("serve", "--backend", "scout_tools.backends.fixed:make", "--port", "0", *options)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and words in done.stderr, done.stderr


def test_a_client_that_does_not_read_its_answers(impatient):
    """What it does not take must not be kept for ever: the connection ends, the server lives."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", impatient.port))
        with pytest.raises(ConnectionError):
            while True:  # pipelined; each answer is some 10 KB
                connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n" * 100)
    counted = impatient.request("GET", "/metrics")[2].decode()
    assert 'scout_rejected_total{reason="slow_reader"} 1\n' in counted, [
        line for line in counted.splitlines() if "rejected" in line
    ]
    assert impatient.act(search("engine"))["valids"] == [True]


def half_closed(server: Server, sent: bytes) -> bytes:
    """What comes back to a client that sends and then shuts its sending side."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answer:
            return answer.read()


def test_a_client_that_closes_its_sending_side_gets_its_answers(serve, monkeypatch):
    monkeypatch.setenv("SCOUT_FIXED_MS", "100")
    server = serve("--backend", "scout_tools.backends.fixed:make", "--workers", 1)
    head = b"POST /get_observation HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n"
    body = json.dumps({"trajectory_ids": ["t"], "actions": ["<search>a question</search>"]}).encode()
    request = head % len(body) + body
    for n in (1, 3):
        answers = half_closed(server, request * n)
        assert answers.count(b"HTTP/1.1 200 OK") == n and answers.count(b'"valids":[true]') == n
        assert answers.lower().count(b"connection: close") == 1
    assert half_closed(server, request[:-5]) == b"" and half_closed(server, b"") == b""
    assert server.act("<search>a question</search>")["valids"] == [True]
