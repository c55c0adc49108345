"""Every node of a cluster: two Ray nodes on this machine, one of them with too few descriptors."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from scout_train.compose import Choice, compose, parse_setting
from scout_train.preflight import machine, nodes
from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, Verdict


class Ready(BaseHTTPRequestHandler):
    """As much of a tool server as a probe asks for."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def tools() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Ready)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def ray_node(*options: str, files: int) -> Iterator[None]:
    """A Ray node whose processes all end with the test."""
    program = str(Path(sys.executable).with_name("ray"))
    small = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats"]
    limited = ["bash", "-c", f'ulimit -n {files}; exec "$@"', "_"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"RAY_AUTH_MODE": "disabled"}
    process = subprocess.Popen(
        [*limited, program, "start", "--block", *small, *options],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        leader = psutil.Process(process.pid)
        for one in [leader, *leader.children(recursive=True)]:
            if one.is_running():
                one.send_signal(signal.SIGKILL)
        process.wait(10)


def facts(tmp_path: Path, tools: str, address: str, *settings: str) -> Facts:
    choice = Choice("grpo", "tiny", "cpu")
    asked = [f"scout.cluster.ray_address={address}", *settings]
    config = compose(choice, [parse_setting(s) for s in asked])
    return Facts(config, choice, tmp_path, 1, tmp_path, [], tools, tmp_path, 1, None, {})


def asked(*arguments: Any) -> Finding:
    found = nodes.nodes(facts(*arguments))
    assert found is not None
    return found


@pytest.mark.timeout(240)
def test_each_node_is_asked(tmp_path: Path, tools: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # has to reach the process that asks
    port = free_port()
    address = f"{ray.util.get_node_ip_address()}:{port}"
    two = "trainer.nnodes=2"
    with ray_node("--head", f"--port={port}", "--node-name=head", "--include-dashboard=false", files=4096):
        one = asked(tmp_path, tools, address)
        while one.verdict is Verdict.REFUSE and "Ray at" in one.found:  # still starting; the test has a limit
            one = asked(tmp_path, tools, address)
        assert one.verdict is Verdict.OK and "1 reach the tool server" in one.found, one.line
        alone = asked(tmp_path, tools, address, two)
        assert alone.verdict is Verdict.REFUSE and "1 of 2 nodes are in the cluster" in alone.found
        dead = f"http://127.0.0.1:{free_port()}"
        lost = asked(tmp_path, dead, address)
        assert lost.verdict is Verdict.REFUSE and "ConnectionRefusedError" in lost.found, lost.line
        few = machine.files_needed(facts(tmp_path, tools, address)) - 1
        with ray_node(f"--address={address}", "--node-name=second", files=few):
            both = asked(tmp_path, tools, address, two)
            while "1 of 2 nodes" in both.found:
                both = asked(tmp_path, tools, address, two)
            assert both.verdict is Verdict.REFUSE, both.line
            assert "(second)" in both.found and f"{few} open files" in both.found


def test_a_ray_of_its_own_has_no_other_nodes(tmp_path: Path) -> None:
    assert nodes.nodes(facts(tmp_path, "http://127.0.0.1:9", "local")) is None


def test_no_cluster_at_the_address_is_one_line(tmp_path: Path) -> None:
    found = asked(tmp_path, "http://127.0.0.1:9", f"127.0.0.1:{free_port()}")
    assert found.verdict is Verdict.REFUSE and found.found.startswith("Ray at 127.0.0.1:")
    assert "ray start" in found.remedy


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tools": "/ready says 503"}, "b (x): http://t: /ready says 503"),
        ({"error": "ModuleNotFoundError: No module named 'scout_train'"}, "b (x): ModuleNotFoundError"),
        ({"model": False}, "b (x): no "),
        ({"files": 100}, "b (x): 100 open files"),
    ],
)
def test_the_node_that_lacks_something_is_named(tmp_path: Path, changed: dict[str, Any], says: str) -> None:
    good = {"tools": "ready", "took_ms": 3.0, "files": 65536, "shm": 2**40, "model": True}
    told = [{"name": "a (w)", **good}, {"name": "b (x)", **good}]
    two = facts(tmp_path, "http://t", "auto", "trainer.nnodes=2")
    found = nodes.judge(told, two)
    assert found.verdict is Verdict.OK and found.found.startswith("2 reach")
    bad = (
        {k: v for k, v in told[1].items() if k == "name"} | changed
        if "error" in changed
        else told[1] | changed
    )
    found = nodes.judge([told[0], bad], two)
    assert found.verdict is Verdict.REFUSE and found.found.startswith(says)
