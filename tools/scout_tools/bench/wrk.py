"""One run of wrk (Debian's package of that name) against a server, and what it said."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from scout_protocol.errors import UserError
from scout_tools.bench.processes import cpu_s
from scout_tools.bench.servers import Running

_UNIT_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}
QUERY = "government position of Shirley Temple"
# 1 KB of action, as a policy writes it; always the same query, so that every answer comes from a cache.
_SCRIPT = r"""
local think = string.rep("I need to find out who that was. ", 28)
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"trajectory_ids":["t1"],"actions":["<think>' .. think ..
  '</think><search>QUERY</search>"],' ..
  '"finish":[false],"is_last_step":[false],"extra_fields":[{}]}'
""".replace("QUERY", QUERY)


@dataclass(frozen=True)
class Round:
    """One run: requests, the server tree's CPU per request, latencies."""

    requests: int
    cpu_us: float
    per_second: float
    p50_ms: float
    p99_ms: float
    errors: int


def check() -> None:
    """Raises UserError where wrk is not installed."""
    if shutil.which("wrk") is None:
        raise UserError("wrk", "not installed", "apt-get install wrk")


def run(server: Running, work: Path, connections: int, seconds: float) -> Round:
    """Load the server with ``connections`` for ``seconds``."""
    script = work / "hot.lua"
    script.write_text(_SCRIPT)
    command = [
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "--timeout",
        "30s",
        "--latency",
    ]
    before = cpu_s(server.pid)
    done = subprocess.run(  # noqa: S603  # our own arguments
        [*command, "-s", str(script), f"{server.url}/get_observation"],
        capture_output=True,
        text=True,
        check=True,
    )
    used = cpu_s(server.pid) - before
    said = done.stdout
    requests = int(_find(r"(\d+) requests in", said))
    bad = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    lost = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", said)
    errors = (int(bad[1]) if bad else 0) + (sum(map(int, lost.groups())) if lost else 0)
    return Round(
        requests=requests,
        cpu_us=used / max(1, requests) * 1e6,
        per_second=float(_find(r"Requests/sec:\s+([\d.]+)", said)),
        p50_ms=_milliseconds(_find(r"(?m)^\s+50%\s+(\S+)", said)),
        p99_ms=_milliseconds(_find(r"(?m)^\s+99%\s+(\S+)", said)),
        errors=errors,
    )


def _find(pattern: str, said: str) -> str:
    found = re.search(pattern, said)
    if found is None:
        raise UserError("wrk", said[-200:], f"said nothing that matches {pattern}")
    return found[1]


def _milliseconds(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    if found is None:
        raise UserError("wrk", text, "is no time")
    return float(found[1]) * _UNIT_MS[found[2]]
