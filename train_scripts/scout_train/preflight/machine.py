"""Checks of this machine: cores, memory under every limit, disk, shared memory, file descriptors, ports."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import sys
from pathlib import Path

from scout_train import checks
from scout_train.host_memory import free_memory_bytes
from scout_train.plan.memory import GIB, plan_memory
from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, ok, refuse, warn

_N_PORTS = 64  # Ray, gloo or NCCL, vLLM and the agent loops of one node open fewer


def cores(facts: Facts) -> Finding:
    """Enough cores for the trainer and the rollouts beside it."""
    n = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if n < checks.MIN_CORES:
        return refuse("cores", f"{n}", f"training needs at least {checks.MIN_CORES} cores")
    return ok("cores", f"{n}")


def memory(facts: Facts) -> Finding:
    """Host memory, container limits included, for the processes of a run and for what is offloaded to it."""
    free_gib, need_gib, why = free_memory_bytes() / GIB, checks.MIN_FREE_GIB, "the processes of a run"
    if facts.on_cpu and facts.layout.batched_rollout:
        need_gib = checks.MIN_FREE_VLLM_CPU_GIB
    if facts.shape is not None:
        plan = plan_memory(facts.shape, facts.layout, facts.device)
        if facts.on_cpu:
            need_gib = max(need_gib, plan.peak.total / GIB)
        else:
            need_gib += sum(plan.host.values()) / GIB
            why += " and what is offloaded"
    said = f"{free_gib:.1f} GiB free, {need_gib:.1f} needed for {why}"
    if free_gib < need_gib:
        return refuse(
            "memory", f"free memory: {said}", "close other programs, or raise the container's limit"
        )
    return ok("memory", said)


def card_memory(facts: Facts) -> Finding | None:
    """The plan of `scout plan memory` fits the cluster's card."""
    if facts.on_cpu or facts.shape is None:
        return None
    plan = plan_memory(facts.shape, facts.layout, facts.device)
    peak = f"{plan.peak.total / GIB:.1f} of {plan.device.memory_gib:g} GiB at the peak ({plan.peak.name})"
    if plan.kv_tokens < facts.layout.sequence_tokens:
        remedy = "raise rollout.gpu_memory_utilization or tensor_model_parallel_size: scout plan memory"
        return refuse(
            "card-memory",
            f"KV cache for {plan.kv_tokens:,} tokens, one trajectory takes {facts.layout.sequence_tokens:,}",
            remedy,
        )
    if not plan.fits:
        return refuse(
            "card-memory", peak, "see scout plan memory: more shards, offloading, or smaller micro-batches"
        )
    if plan.peak.total > 0.93 * plan.device.memory_gib * GIB:
        return warn("card-memory", peak, "hardly any room for fragments: see scout plan memory")
    return ok("card-memory", peak)


def disk(facts: Facts) -> Finding:
    """Room for the checkpoints that are kept, the one being written, and the exported model."""
    # fp32 weights, two Adam moments and the exported weights: 16 bytes a parameter
    need = 16 * facts.params * (int(facts.config.scout.run.keep_checkpoints) + 2) + 2**28
    place = facts.out
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    said = f"{free / GIB:.1f} GiB free at {facts.out}, {need / GIB:.1f} needed for checkpoints"
    if free < need:
        return refuse("disk", said, "free some space, or keep fewer (scout.run.keep_checkpoints)")
    return ok("disk", said)


def shm(facts: Facts) -> Finding | None:
    """Shared memory for Ray's object store, and NCCL's buffers between the cards of a node."""
    folder = Path("/dev/shm")  # noqa: S108  the kernel's shared memory, not a temporary file of ours
    if not folder.is_dir():
        return None
    free, need = shutil.disk_usage(folder).free, shm_needed(facts)
    said = f"{free / GIB:.2f} GiB free in /dev/shm, {need / GIB:.2f} needed"
    if free >= need:
        return ok("shm", said)
    if facts.on_cpu:
        return warn("shm", said, "Ray will use the disk instead: docker run --shm-size=1g")
    return refuse("shm", said, "docker run --shm-size=16g, or --ipc=host")


def shm_needed(facts: Facts) -> int:
    """Bytes of shared memory that a node needs."""
    store = facts.config.ray_kwargs.ray_init.get("object_store_memory") or 0
    return max(int(store), 0 if facts.on_cpu else 8 * GIB)


def files_needed(facts: Facts) -> int:
    """Open descriptors that a node needs."""
    rollouts = int(facts.config.data.train_batch_size) * int(facts.config.actor_rollout_ref.rollout.n)
    at_once = min(rollouts, int(facts.config.scout.tools.max_connections))
    return 512 + 64 * facts.layout.cards_per_node + 2 * at_once


def files(facts: Facts) -> Finding:
    """Descriptors for Ray's processes and for every tool call in flight."""
    limit, need = resource.getrlimit(resource.RLIMIT_NOFILE)[0], files_needed(facts)
    said = f"{'no limit' if limit == resource.RLIM_INFINITY else f'{limit:,}'} open files, {need:,} needed"
    if limit != resource.RLIM_INFINITY and limit < need:
        return refuse("files", said, "raise it in this shell: ulimit -n 65536")
    return ok("files", said)


def ports(facts: Facts) -> Finding:
    """This node's name resolves, and ports can be opened on it and on loopback."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as error:
        if facts.layout.nodes > 1:
            return refuse(
                "ports", f"the name of this node, {name}, does not resolve ({error})", "add it to /etc/hosts"
            )
        address = "127.0.0.1"
    opened: list[socket.socket] = []
    try:
        for i in range(_N_PORTS):
            opened.append(socket.socket())
            opened[-1].bind(("127.0.0.1" if i % 2 else address, 0))
    except OSError as error:
        return refuse(
            "ports", f"{len(opened) - 1} of {_N_PORTS} ports could be opened ({error})", "free some: ss -s"
        )
    finally:
        for one in opened:
            one.close()
    asked = facts.env.get("VLLM_PORT", "")
    if asked and facts.layout.batched_rollout:
        with socket.socket() as probe:
            if not asked.isdigit() or probe.connect_ex(("127.0.0.1", int(asked))) == 0:
                return refuse(
                    "ports", f"VLLM_PORT={asked} is in use or no port", "choose another, or unset it"
                )
    return ok("ports", f"{_N_PORTS} free ports on {address} and loopback")
