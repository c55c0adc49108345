"""A tool server, and commands that are killed at a moment of the test's choosing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

SCOUT = [sys.executable, "-m", "scout_cli.main"]
# A warm-up of seconds, as far as its tests agree.
SMALL: dict[str, Any] = {
    "batch": 4,
    "warmup_steps": 1,
    "val_share": 0.1,
    "save_every": 2,
    "val_every": 2,
    "max_length": 512,
    "demos_per_pass": 2,
}


def kill_when(command: Sequence[str], now: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Start ``command``, kill -9 it once ``now()`` is true, and see that none of its children outlives it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + timeout_s
    while not now():
        assert process.poll() is None, process.stderr.read() if process.stderr else ""
        assert time.monotonic() < deadline
        time.sleep(0.002)
    children = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert not alive and gone, "a child outlived the command"


@contextmanager
def tool_server(index: Path, folder: Path, *more: str) -> Iterator[str]:
    """The real tool server, two documents per search; gives its URL."""
    ready = folder / "ready.json"
    log = (folder / "log").open("wb")
    serve = [*SCOUT, "serve", "--index", str(index), "--port", "0", "--workers", "1", "--topk", "2", *more]
    process = subprocess.Popen(
        [*serve, "--ready-file", str(ready)], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "the tool server did not start"
            time.sleep(0.05)
        yield str(json.loads(ready.read_text())["url"])
    finally:
        process.terminate()
        process.wait(20)
        log.close()
