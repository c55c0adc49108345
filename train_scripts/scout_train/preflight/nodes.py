"""Every node of a cluster that is there already: does it reach the tool server, and has it what a run needs?

The checks of the other modules look at this machine. Here Ray runs one small task on each node. It runs in a
process of its own, ``python -m scout_train.preflight.nodes``: the question on standard input, the answer on
standard output, as JSON. That process joins the cluster and leaves it, the launcher never does.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from scout_train.plan.memory import GIB
from scout_train.preflight import machine
from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, ok, refuse
from scout_train.preflight.node_probe import probe

TIMEOUT_S = 120.0
_START = "start it: ray start --head, then the others"
_NODE_TIMEOUT_S = 60.0  # a node may have to start a worker first


def nodes(facts: Facts) -> Finding | None:
    """As many nodes as the run wants; each reaches the tool server directly, and has what a node needs."""
    address = str(facts.config.scout.cluster.ray_address)
    if address == "local":
        return None  # this machine alone: `tools`, `files`, `shm` have looked at it
    if why := _nobody(address):  # Ray itself would go on trying for minutes
        return refuse("nodes", f"Ray at {address}: {why}", _START)

    from scout_train.environment import outside, shared_variables

    asked = {
        "address": address,
        "env": shared_variables(facts.config),
        "tools": facts.tools,
        "model": str(facts.model.resolve()),
    }
    env = outside(facts.config) | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-m", "scout_train.preflight.nodes"]
    try:
        done = subprocess.run(  # noqa: S603
            command, input=json.dumps(asked), env=env, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return refuse(
            "nodes", f"Ray at {address} gave no answer in {TIMEOUT_S:.0f} s", "see `ray status` on the head"
        )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        remedy = _START
        if "AuthToken" in done.stderr:
            last = "it asks for a token"
            remedy = "export RAY_AUTH_MODE=token, with the head's ~/.ray/auth_token on this node"
        return refuse("nodes", f"Ray at {address}: {last[:300]}", remedy)
    return judge(json.loads(done.stdout.splitlines()[-1]), facts)


def _nobody(address: str) -> str:
    """Why nothing answers at ``HOST:PORT``; "" where something does, and for "auto"."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return ""
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return ""
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def judge(told: list[dict[str, Any]], facts: Facts) -> Finding:
    """One finding from what the nodes told; the first that lacks something is named with it."""
    wanted = facts.layout.nodes
    names = ", ".join(str(node["name"]) for node in told)
    if len(told) < wanted:
        remedy = "start the others: ray start --address=HEAD:6379, or set trainer.nnodes"
        return refuse("nodes", f"{len(told)} of {wanted} nodes are in the cluster ({names})", remedy)
    files, shm = machine.files_needed(facts), machine.shm_needed(facts)
    for node in told:
        name = node["name"]
        if "error" in node:
            return refuse("nodes", f"{name}: {node['error']}", "install the same packages on every node")
        if node["tools"] != "ready":
            remedy = "serve with --host 0.0.0.0 inside the cluster, and open its port to every node"
            return refuse("nodes", f"{name}: {facts.tools}: {node['tools']}", remedy)
        if not node["model"]:
            return refuse("nodes", f"{name}: no {facts.model.resolve()}", "put it where every node finds it")
        if node["files"] is not None and node["files"] < files:
            said = f"{name}: {node['files']:,} open files, {files:,} needed"
            return refuse("nodes", said, "ulimit -n 65536 before `ray start`")
        if node["shm"] is not None and node["shm"] < shm and not facts.on_cpu:
            room = f"{node['shm'] / GIB:.2f} GiB free in /dev/shm, {shm / GIB:.2f} needed"
            return refuse("nodes", f"{name}: {room}", "docker run --shm-size=16g, or --ipc=host")
    slowest_ms = max(node["took_ms"] for node in told)
    return ok("nodes", f"{len(told)} reach the tool server directly, {slowest_ms:.0f} ms at most ({names})")


def main() -> int:
    """Ask every node that is alive; print a list with one object for each."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = json.load(sys.stdin)
    ray.init(address=asked["address"], log_to_driver=False, runtime_env={"env_vars": asked["env"]})
    alive = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(num_cpus=0, max_retries=0)(probe)
    pending = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
            asked["tools"], asked["model"]
        )
        for node in alive
    ]
    told = []
    for node, reference in zip(alive, pending, strict=True):
        name = f"{node['NodeManagerHostname']} ({node['NodeName']})"
        try:
            told.append({"name": name, **ray.get(reference, timeout=_NODE_TIMEOUT_S)})
        except Exception as error:  # told with the node's name: the others' answers stay of use
            text = (str(error).strip().splitlines() or [""])[-1]
            told.append({"name": name, "error": f"{type(error).__name__}: {text[:200]}"})
    print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # leaving the cluster takes seconds and has nothing left to save
