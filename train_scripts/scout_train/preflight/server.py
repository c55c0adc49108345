"""Checks of the tool server: is it there, from every node, past every proxy, and fast enough?"""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from scout_agent.tool_access import token_from_env
from scout_protocol.dialect import get_dialect
from scout_train import checks
from scout_train.plan.memory import plan_memory
from scout_train.plan.throughput import Traffic, plan_time
from scout_train.preflight.facts import Facts
from scout_train.preflight.finding import Finding, ok, refuse, warn

_LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")  # noqa: S104  recognised, never bound
PROBE_CALLS, PROBE_AT_ONCE, PROBE_S = 32, 8, 1.5


def tools(facts: Facts) -> Finding:
    """Answers /ready on a direct connection, at an address that other nodes can reach, too."""
    host = urlsplit(facts.tools).hostname or ""
    if facts.layout.nodes > 1 and host.startswith(_LOOPBACK):
        remedy = "give an address that every node reaches, and serve with --host 0.0.0.0 inside the cluster"
        return refuse("tools", f"{facts.tools} is this node only, the run has {facts.layout.nodes}", remedy)
    started = time.perf_counter()
    checks.check_tools(facts.tools, str(facts.config.scout.tools.token_env))
    took_ms = 1000 * (time.perf_counter() - started)
    return ok("tools", f"{facts.tools} is ready, {took_ms:.0f} ms, direct")


def proxies(facts: Facts) -> Finding:
    """Tool calls go direct in both engines (aiohttp without trust_env); W&B online does not."""
    found = {k: v for k, v in _proxies(facts.env).items() if v}
    if not found:
        return ok("proxies", "none set")
    users = _users(facts)
    dead = [f"{name} ({url})" for name, url in found.items() if not _listens(url)]
    shown = ", ".join(f"{name}={_without_password(url)}" for name, url in found.items())
    if not users:
        state = "; it answers nothing" if dead else ""
        return ok("proxies", f"{shown}{state}; nothing in this run goes through it, tool calls are direct")
    if dead:
        remedy = "unset the proxy, or WANDB_MODE=offline"
        return refuse(
            "proxies", f"{shown} answers nothing, and {' and '.join(users)} would go through it", remedy
        )
    return ok("proxies", f"{shown} answers; used by {' and '.join(users)} only")


def _proxies(env: Mapping[str, str]) -> dict[str, str]:
    names = ("http_proxy", "https_proxy", "all_proxy")
    return {n: env.get(n) or env.get(n.upper()) or "" for n in names}


def _users(facts: Facts) -> list[str]:
    online = (
        facts.env.get("WANDB_MODE", "online" if facts.env.get("WANDB_API_KEY") else "offline") == "online"
    )
    return ["Weights & Biases"] if online and "wandb" in list(facts.config.trainer.logger) else []


def _listens(url: str) -> bool:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 80), timeout=2):
            return True
    except (OSError, ValueError):
        return False


def _without_password(url: str) -> str:
    scheme, mark, rest = url.rpartition("://")
    return f"{scheme}{mark}{rest.rpartition('@')[2]}"


def capacity(facts: Facts) -> Finding:
    """Searches a second that the server gives, against those that generation will ask for."""
    planned = planned_searches_per_s(facts)
    done, took_s, failed = _probe(facts)
    if not done:
        return refuse(
            "capacity", f"{failed} searches failed, none was answered", "see the server's log and /metrics"
        )
    rate = done / took_s
    said = f"{rate:,.0f} searches a second ({PROBE_AT_ONCE} at once, {done} answered), {planned:,.1f} planned"
    remedy = "more workers (make serve-tools WORKERS=4), an index of your own, or a cache"
    if failed:
        return warn("capacity", f"{said}; {failed} failed", "see the server's log and /metrics")
    if rate < planned / 10 and not facts.on_cpu:  # a laptop may just be busy with something else
        return refuse("capacity", said, remedy)
    return warn("capacity", said, remedy) if rate < planned else ok("capacity", said)


def planned_searches_per_s(facts: Facts) -> float:
    """Mean over the generation phase, with the planner's default trajectory."""
    if facts.shape is None:
        return 0.0
    config = facts.config
    searches = float(min(2, int(config.scout.episode.max_turns) - 1))
    traffic = Traffic(
        questions=int(config.data.train_batch_size),
        group_size=int(config.actor_rollout_ref.rollout.n),
        prompt_tokens=float(config.data.max_prompt_length) / 2,
        policy_tokens=min(500.0, float(config.scout.episode.max_turn_tokens)),
        tool_tokens=searches * float(config.scout.episode.max_obs_tokens),
        searches=searches,
        accept_rate=0.5 if config.algorithm.filter_groups.enable else 1.0,
    )
    kv_tokens = plan_memory(facts.shape, facts.layout, facts.device).kv_tokens
    return plan_time(facts.shape, facts.layout, facts.device, traffic, kv_tokens).searches_per_s


def _probe(facts: Facts) -> tuple[int, float, int]:
    """``(answered, seconds, failed)`` of real searches for the first questions; stops after `PROBE_S`."""
    dialect = get_dialect(str(facts.config.scout.episode.dialect))
    parts = urlsplit(facts.tools)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    questions = [r.question for r in facts.rows[:PROBE_CALLS]]
    headers = {"Content-Type": "application/json"}
    if token := token_from_env(str(facts.config.scout.tools.token_env)):
        headers["Authorization"] = f"Bearer {token}"
    start = time.perf_counter()

    def ask(number: int) -> int | None:
        if time.perf_counter() - start > PROBE_S:
            return None
        action = f"{dialect.search.open} {questions[number % len(questions)]} {dialect.search.close}"
        body = json.dumps({"trajectory_ids": [f"preflight-{number}"], "actions": [action]}).encode()
        connection = connect(
            parts.hostname or "", parts.port, timeout=float(facts.config.scout.tools.timeout_s)
        )
        try:
            connection.request("POST", f"{parts.path}/get_observation", body, headers)
            response = connection.getresponse()
            reply = json.loads(response.read())
            return int(response.status == 200 and reply.get("valids") == [True])
        except (OSError, ValueError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    with ThreadPoolExecutor(PROBE_AT_ONCE) as pool:
        answers = [a for a in pool.map(ask, range(PROBE_CALLS)) if a is not None]
    return sum(answers), time.perf_counter() - start, answers.count(0)
