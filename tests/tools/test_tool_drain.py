"""A stop answers everything that was accepted; a dead worker is back within two seconds."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from tool_helpers import Server

BODY = json.dumps({"trajectory_ids": ["t"], "actions": ["<search>a question</search>"]}).encode()
FIXED = ("--backend", "scout_tools.backends.fixed:make")
N_CLIENTS = 48


class Client(threading.Thread):
    """Asks again and again on one connection, until an answer says that it is the last."""

    def __init__(self, port: int, started: threading.Barrier, think_s: float) -> None:
        super().__init__()
        self._port, self._all_started, self._think_s = port, started, think_s
        self.outcomes = Counter[str]()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        connection.connect()
        last = False
        for turn in range(10_000):
            try:
                connection.request("POST", "/get_observation", BODY)
                response = connection.getresponse()
                reply = json.loads(response.read())
            except (OSError, http.client.HTTPException) as error:
                self.outcomes[f"lost: {type(error).__name__}"] += 1
                break
            self.outcomes["answered" if reply["valids"] == [True] else "wrong"] += 1
            if turn == 0:
                self._all_started.wait(timeout=20)
            if response.getheader("connection") == "close":
                last = True
                break
            time.sleep(self._think_s)  # the policy writes its next turn
        self.outcomes["told that it was the last"] += last
        connection.close()


@pytest.mark.parametrize(
    ("number", "think_s"), [(signal.SIGTERM, 0.0), (signal.SIGINT, 0.0), (signal.SIGTERM, 0.15)]
)
def test_no_accepted_request_is_lost(serve, monkeypatch, number, think_s):
    monkeypatch.setenv("SCOUT_FIXED_MS", "60")
    server: Server = serve(*FIXED, "--workers", 2)
    started = threading.Barrier(N_CLIENTS + 1)
    clients = [Client(server.port, started, think_s) for _ in range(N_CLIENTS)]
    for client in clients:
        client.start()
    started.wait(timeout=20)
    server.process.send_signal(number)
    for client in clients:
        client.join(timeout=30)
    assert server.process.wait(timeout=20) == 0
    total = sum((client.outcomes for client in clients), Counter[str]())
    assert total["told that it was the last"] == N_CLIENTS, total
    assert set(total) == {"answered", "told that it was the last"} and total["answered"] > N_CLIENTS


def test_what_stands_in_the_backlog_is_answered(serve, monkeypatch):
    """Connections that were opened, and written to, just before the stop; no worker has seen them yet."""
    monkeypatch.setenv("SCOUT_FIXED_MS", "50")
    server: Server = serve(*FIXED, "--workers", 1)
    head = f"POST /get_observation HTTP/1.1\r\nHost: a\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
    os.kill(child(server), signal.SIGSTOP)
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(32)]
    for connection in connections:
        connection.sendall(head + BODY)
    server.process.terminate()
    os.kill(child(server), signal.SIGCONT)
    for connection in connections:
        with connection.makefile("rb") as answer:  # to its end: the server closes every connection
            assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
            assert json.loads(answer.read().partition(b"\r\n\r\n")[2])["valids"] == [True]
        connection.close()
    assert server.process.wait(timeout=20) == 0


def test_a_stop_does_not_wait_for_idle_clients(serve):
    server: Server = serve(*FIXED, "--workers", 1)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as idle:
        idle.sendall(b"GET /ready HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = idle.makefile("rb")
        assert answer.readline() == b"HTTP/1.1 200 OK\r\n"
        start = time.monotonic()
        server.process.terminate()
        assert server.process.wait(timeout=20) == 0
        assert time.monotonic() - start < 8  # half a second, on an idle machine
        assert answer.read().endswith(b"}")  # and then the end of the stream


def test_a_worker_that_dies_while_it_drains_is_told(serve, monkeypatch):
    monkeypatch.setenv("SCOUT_FIXED_MS", "20000")
    server: Server = serve(*FIXED, "--workers", 1)
    victim = child(server)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        head = f"POST /get_observation HTTP/1.1\r\nHost: a\r\nContent-Length: {len(BODY)}\r\n\r\n".encode()
        client.sendall(head + BODY)
        while "scout_queue_depth 1" not in server.request("GET", "/metrics")[2].decode():
            pass
        server.process.terminate()
        client.settimeout(1.5)
        with pytest.raises(TimeoutError):  # it waits for the answer
            client.recv(1)
        os.kill(victim, signal.SIGKILL)
        _, errors = server.process.communicate(timeout=10)
    assert server.process.returncode == 1 and f"worker {victim} died while it stopped" in errors


def test_a_worker_that_died_is_back_within_two_seconds(serve):
    server: Server = serve(*FIXED, "--workers", 1)
    victim = child(server)
    handle = os.pidfd_open(victim)
    os.kill(victim, signal.SIGKILL)
    assert select.select([handle], [], [], 10)[0]
    os.close(handle)
    start = time.monotonic()
    assert server.act("<search>a</search>")["valids"] == [True]  # waits in the port's backlog; never refused
    assert time.monotonic() - start < 2.0
    assert child(server) != victim


def child(server: Server) -> int:
    """The only worker."""
    path = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
    return int(path.read_text().split()[0])
