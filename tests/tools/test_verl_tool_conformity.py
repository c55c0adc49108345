"""verl-tool's own client code and models against our server; else bodies recorded from it."""

from __future__ import annotations

import ast
import asyncio
import http.client
import json
import os
import re
import socket
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tool_helpers import REPO

VERL_TOOL = Path(os.environ.get("SCOUT_VERL_TOOL", REPO / "verl-tool")) / "verl_tool"
needs_submodule = pytest.mark.skipif(
    not (VERL_TOOL / "servers" / "tool_server.py").exists(),
    reason="verl-tool is not checked out: git submodule update --init verl-tool",
)

# What the agent loop of verl-tool 980962b sends: a turn, a last turn, and the close of a trajectory.
TURN = {
    "trajectory_ids": ["5f0e7c"],
    "actions": ["<think>x</think><search>analytical engine</search>"],
    "finish": [False],
    "is_last_step": [False],
    "extra_fields": [{"data_source": "hotpotqa", "index": 3, "nested": {"a": [1, None, 2.5]}}],
}
CLOSE = {"trajectory_ids": ["5f0e7c"], "actions": [""], "finish": [True], "is_last_step": [True]}


def definition(path: Path, name: str) -> str:
    """The source of one class or function, without importing its file (which would import ray)."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if getattr(node, "name", None) == name:
            return textwrap.dedent("\n".join(source.splitlines()[_first_line(node) - 1 : node.end_lineno]))
    raise AssertionError(f"{path} defines no {name}")


def run(source: str, names: dict[str, Any]) -> None:
    """Define it. Our own ``from __future__ import annotations`` must not reach their code."""
    exec(compile(source, "verl-tool", "exec", dont_inherit=True), names)


def _first_line(node: Any) -> int:
    return min([node.lineno, *(d.lineno for d in node.decorator_list)])


LOOP = VERL_TOOL / "agent_loop" / "verltool_agent_loop.py"


def its_client(url: str) -> Any:
    """verl-tool's agent loop without the model: its own HTTP client, on the real network."""
    aiohttp = pytest.importorskip("aiohttp")
    np, pil = pytest.importorskip("numpy"), pytest.importorskip("PIL.Image")
    import logging
    import socket
    import time
    import uuid

    names: dict[str, Any] = {"Any": Any, "Dict": dict, "List": list, "MAX_OBS_LENGTH": 100_000}
    names.update(aiohttp=aiohttp, asyncio=asyncio, json=json, logging=logging, os=os, socket=socket)
    names.update(time=time, uuid=uuid, np=np, Image=pil, logger=logging.getLogger("verl_tool"), re=re)
    tree = ast.parse(LOOP.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "CONTROL_CHAR_RE":
            run(ast.unparse(node), names)
    hooks = [n.name for n in tree.body if isinstance(n, ast.AsyncFunctionDef) and n.name.startswith("on_")]
    for name in (*hooks, "sanitize_request"):
        run(definition(LOOP, name), names)
    methods = (
        "get_session",
        "aclose_session",
        "_aiohttp_request",
        "send_batch_requests_async",
        "interact_with_tool_server",
        "close_traj_tool_threads",
    )
    for name in methods:
        run(definition(LOOP, name), names)
    members = {name: names[name] for name in methods}
    members.update(_session=None, _session_lock=asyncio.Lock(), session_limit=64)
    loop = type("Loop", (), members)()
    loop.agent_config = SimpleNamespace(
        tool_server_url=f"{url}/get_observation", tool_call_timeout=20, tool_call_max_retries=1
    )
    return loop


@needs_submodule
def test_its_own_client_over_http(server):
    """A whole trajectory as its agent loop sends it: turns, a bad one, the answer, the close."""

    async def trajectory() -> list[dict[str, Any]]:
        loop = its_client(server.url)
        try:
            extra = {"data_source": "hotpotqa", "index": 3}
            found = [
                await loop.interact_with_tool_server("t1", action, True, extra, is_last_step=last)
                for action, last in (
                    ("<think>é \x00 x</think><search>analytical engine</search>", False),
                    ("<search>never closed", False),
                    ("<answer>Babbage</answer>", True),
                )
            ]
            await loop.close_traj_tool_threads("t1")
        finally:
            await loop.aclose_session()
        return found

    searched, malformed, answered = asyncio.run(trajectory())
    assert "Charles Babbage" in searched["obs"] and searched["success"] and searched["valid_action"] == 1
    assert searched["X-Process-Time"] > 0 and searched["queue_time_ms"] == 0.0
    assert malformed["invalid_reason"] == "no_closing_tag" and malformed["done"] == 0
    assert answered["done"] == 1 and answered["valid_action"] == 1


@needs_submodule
def test_its_client_sees_an_outage_as_one(serve):
    """The flags of an infra error arrive in what its loop keeps of a turn; the trajectory goes on."""
    backend = ("--backend", "scout_tools.backends.fixed:make", "--timeout-s", 0.05)
    os.environ["SCOUT_FIXED_MS"] = "10000"
    try:
        server = serve(*backend, "--workers", 1)
    finally:
        del os.environ["SCOUT_FIXED_MS"]

    async def turn() -> dict[str, Any]:
        loop = its_client(server.url)
        try:
            return await loop.interact_with_tool_server("t", "<search>a</search>", True, {})
        finally:
            await loop.aclose_session()

    found = asyncio.run(turn())
    assert found["infra_error"] == 1.0 and found["error_kind"] == "timeout"
    assert found["done"] == 0 and found["valid_action"] == 0 and "unavailable" in found["obs"]


RECORDED = Path(__file__).parent / "data" / "verl_tool_requests.jsonl"


def test_recorded_requests(server):
    """Requests as verl-tool 980962b puts them on the wire, byte by byte (recorded through `its_client`)."""
    expected = {
        "a search": (False, True),
        "a search with control characters": (False, True),
        "an action that is not closed": (False, False),
        "no action at all": (False, False),
        "the answer on the last step": (True, True),
        "no action wanted": (True, True),
        "the close of a trajectory": (True, True),
    }
    seen = {}
    for line in RECORDED.read_text(encoding="utf-8").splitlines():
        recorded = json.loads(line)
        head = recorded["head"].replace("HOST", f"127.0.0.1:{server.port}").encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(head + recorded["body"].encode())
            answer = http.client.HTTPResponse(connection)
            answer.begin()
            reply = json.loads(answer.read())
        assert answer.status == 200, reply
        assert len(reply["observations"]) == 1
        seen[recorded["what"]] = (reply["dones"][0], reply["valids"][0])
    assert seen == expected


def test_recorded_bodies(server):
    status, turn = server.post("/get_observation", TURN)
    assert status == 200 and turn["valids"] == [True] and isinstance(turn["observations"][0], str)
    status, close = server.post("/get_observation", CLOSE)
    assert status == 200 and close["dones"] == [True]


@needs_submodule
def test_its_agent_loop_reads_our_answers(server):
    names: dict[str, Any] = {"Any": Any, "MAX_OBS_LENGTH": 100_000}
    run(definition(VERL_TOOL / "agent_loop" / "verltool_agent_loop.py", "interact_with_tool_server"), names)

    class Loop:
        async def send_batch_requests_async(self, batch: dict[str, Any]) -> dict[str, Any]:
            status, reply = server.post("/get_observation", batch)
            assert status == 200
            return {**reply, "success": True}

    def interact(action: str, do_action: bool = True) -> dict[str, Any]:
        return asyncio.run(names["interact_with_tool_server"](Loop(), "t1", action, do_action, {"a": 1}))

    found = interact(TURN["actions"][0])
    assert "Charles Babbage" in found["obs"] and found["valid_action"] == 1 and found["done"] == 0
    assert found["reward"] is None and isinstance(found["queue_time_ms"], float)
    assert interact("<search>")["invalid_reason"] == "no_closing_tag"
    ended = interact("<answer>x</answer>")
    assert ended["done"] == 1 and ended["obs"] == ""
    assert interact("", do_action=False)["done"] == 1


@needs_submodule
def test_its_models_accept_both_directions(server):
    pydantic = pytest.importorskip("pydantic")
    from typing import Optional, Union

    used = ("BaseModel", "Field", "field_validator", "ValidationInfo")
    names: dict[str, Any] = {name: getattr(pydantic, name) for name in used}
    names.update(Any=Any, Dict=dict, List=list)
    names.update(Optional=Optional, Union=Union, __name__="verl_tool_models")
    for name in ("ActionRequest", "AgentResponse"):
        run(definition(VERL_TOOL / "servers" / "tool_server.py", name), names)
    for body in (TURN, CLOSE):
        names["ActionRequest"].model_validate(body)
        _, reply = server.post("/get_observation", body)
        names["AgentResponse"].model_validate_json(json.dumps(reply))
    _, reply = server.post("/get_observation", {**TURN, "actions": ["nothing"]})
    names["AgentResponse"].model_validate(reply)
