"""Starts the servers that are measured, each as its own users start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.request import ProxyHandler, build_opener

from scout_protocol.errors import UserError


@dataclass(frozen=True)
class Running:
    """A server under measurement. ``start_s`` is from its start to its readiness."""

    name: str
    url: str
    pid: int
    start_s: float


@contextmanager
def scout(work: Path, *options: object, name: str = "scout", **environment: str) -> Iterator[Running]:
    """`scout serve` on a free port."""
    ready = work / f"{name}.ready.json"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scout_cli.main", "serve", "--port", "0", "--ready-file", str(ready)]
    command += ["--exit-with", str(os.getpid()), *map(str, options)]
    start = time.monotonic()
    with _process(name, command, work, environment) as process:
        while not ready.exists():
            _still_there(process, name, work, start, 60)
        took = time.monotonic() - start
        facts = json.loads(ready.read_text())
        yield Running(name, facts["url"], int(facts["pid"]), took)


@contextmanager
def verl_tool(work: Path, checkout: Path, python: str, port: int) -> Iterator[Running]:
    """verl-tool's server with its defaults for 512 requests at once (2 backends, 4 routers)."""
    environment = {
        "SCOUT_VERL_TOOL": str(checkout.resolve()),
        "SCOUT_VERL_TOOL_PLUGINS": "scout_tools.bench.verl_tool_fixed",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    command = [python, "-m", "scout_tools.verl_tool.launch", "serve", "--tool_type", "scout_fixed"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max_concurrent_requests", "512"]
    command += ["--uvi_workers", "2", "--router_workers", "4", "--log_level", "warning"]
    start = time.monotonic()
    with _process("verl-tool", command, work, environment) as process:
        url = f"http://127.0.0.1:{port}"
        while not _answers(f"{url}/health"):
            _still_there(process, "verl-tool", work, start, 120)
        yield Running("verl-tool", url, process.pid, time.monotonic() - start)


@contextmanager
def _process(
    name: str, command: list[str], work: Path, environment: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    with (work / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603  # our own commands
            command,
            stdout=log,
            stderr=log,
            cwd=work,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
        with suppress(ProcessLookupError):  # its own session: whatever it left behind
            os.killpg(process.pid, signal.SIGKILL)


def _still_there(
    process: subprocess.Popen[bytes], name: str, work: Path, start: float, longest_s: float
) -> None:
    time.sleep(0.02)
    if process.poll() is not None or time.monotonic() - start > longest_s:
        tail = (work / f"{name}.log").read_text(errors="replace")[-600:]
        raise UserError(name, f"did not start (see {work / f'{name}.log'})", " ".join(tail.split()))


def _answers(url: str) -> bool:
    with suppress(OSError), build_opener(ProxyHandler({})).open(url, timeout=2) as response:
        return bool(response.status == 200)
    return False
