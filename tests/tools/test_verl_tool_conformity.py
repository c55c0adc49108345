"""verl-tool's own client code and models against our server; else bodies recorded from it."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import textwrap
from pathlib import Path
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
