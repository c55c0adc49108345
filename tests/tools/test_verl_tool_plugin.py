"""`wiki_search` in verl-tool's own server: its real base class, registry, manager and HTTP server."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tool_helpers import REPO

CHECKOUT = Path(os.environ.get("SCOUT_VERL_TOOL", REPO / "verl-tool"))
pytestmark = pytest.mark.skipif(
    not (CHECKOUT / "verl_tool" / "servers").exists(),
    reason="verl-tool is not checked out: git submodule update --init verl-tool",
)
ACTIONS = [
    "<think>x</think><search>analytical engine</search>",
    "<answer>Babbage</answer>",
    "<search>never closed",
    "no tag at all",
]


@pytest.fixture
def tool(index_dir, monkeypatch):
    monkeypatch.syspath_prepend(str(CHECKOUT))
    monkeypatch.setenv("SCOUT_WIKI_SEARCH_ARGS", f"--backend bm25 --index {index_dir} --topk 2")
    plugin = importlib.import_module("scout_tools.verl_tool.plugin")
    plugin.register()
    base = importlib.import_module("verl_tool.servers.tools.base")
    made = base.get_tool_cls("wiki_search")(num_workers=8)
    assert isinstance(made, base.BaseTool) and type(made) is plugin.WikiSearch
    return made


def test_its_answers_are_those_of_our_server(tool, index_dir, serve):
    server = serve("--index", index_dir, "--workers", 1, "--topk", 2)
    ids = [f"t{i}" for i in range(len(ACTIONS) * 2)]
    # more than four at once: verl-tool then calls from a pool of threads
    observations, dones, valids = tool.get_observations(ids, ACTIONS * 2, [{} for _ in ids])
    reply = server.act(*ACTIONS * 2)
    assert list(observations) == reply["observations"]
    assert list(dones) == reply["dones"] and list(valids) == reply["valids"]
    assert "Charles Babbage" in observations[0]


def test_parse_action_and_usage(tool):
    assert tool.parse_action(ACTIONS[0]) == ("analytical engine", True)
    assert tool.parse_action(ACTIONS[1]) == ("Babbage", True)
    assert tool.parse_action(ACTIONS[2])[1] is False
    assert tool.get_action_priority(ACTIONS[0], {}) == 0 and tool.get_action_priority("x", {}) == -1
    usage = tool.get_usage_inst()
    assert "<search>" in usage and "</answer>" in usage


def test_an_outage_is_no_empty_observation(tool, monkeypatch):
    from scout_tools.backends.base import BackendError

    async def fail(queries: Any, topk: int) -> Any:
        raise BackendError("rate_limited", "429")

    monkeypatch.setattr(tool._observer.backend, "search", fail)
    observation, done, valid = tool.conduct_action("t", "<search>not asked before</search>", {})
    assert observation["infra_error"] == 1.0 and observation["error_kind"] == "rate_limited"
    assert "unavailable" in observation["obs"] and (done, valid) == (False, False)


@pytest.mark.parametrize("which", ["tool_server", "serve"])
def test_through_its_own_server(index_dir, tmp_path, which):
    for name in ("fire", "fastapi", "ray", "regex"):
        pytest.importorskip(name)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--max_concurrent_requests", "64"]
    command = [
        sys.executable,
        "-m",
        "scout_tools.verl_tool.launch",
        which,
        "--tool_type",
        "wiki_search",
        *options,
    ]
    environment = {
        **os.environ,
        "SCOUT_VERL_TOOL": str(CHECKOUT),
        "SCOUT_WIKI_SEARCH_ARGS": f"--backend bm25 --index {index_dir} --topk 2",
    }
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=tmp_path)
    try:
        reply = ask_when_up(port, process, tmp_path / "log")
    finally:
        process.terminate()
        process.wait(timeout=30)
    assert "Charles Babbage" in reply["observations"][0]
    assert reply["valids"] == [True, True] and reply["dones"] == [False, True]


def ask_when_up(port: int, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    body = json.dumps({"trajectory_ids": ["a", "b"], "actions": ACTIONS[:2]})
    give_up = time.monotonic() + 90
    while time.monotonic() < give_up and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("POST", "/get_observation", body, {"Content-Type": "application/json"})
            return dict(json.loads(connection.getresponse().read()))
        except OSError:
            time.sleep(0.2)  # it has no way to say that it is up
        finally:
            connection.close()
    raise AssertionError(log.read_text(errors="replace")[-3000:])
