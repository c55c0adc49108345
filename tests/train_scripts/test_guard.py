"""Nothing that a run starts outlives it: with real processes, including ones that try to get away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scout_train import guard

# A command that starts a daemon in a session of its own (twice forked, like Ray's), then does `then`.
ESCAPE = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", '''
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
open("{pid}.tmp", "w").write(str(os.getpid())); os.rename("{pid}.tmp", "{pid}")
time.sleep(600)
''']).wait()
while not os.path.exists("{pid}"): time.sleep(0.01)
{then}
"""


class Guarded:
    """A guard around the escaping command; ``daemon`` is the escaped process."""

    def __init__(self, folder: Path, then: str, limit_s: float = 0) -> None:
        self.temp, pid_file = folder / "temp", folder / "daemon.pid"
        self.temp.mkdir()
        (self.temp / "socket").write_text("x")
        script = ESCAPE.format(pid=pid_file, then=then)
        self.log = folder / "log"
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "scout_train.guard",
                str(self.temp),
                str(limit_s),
                str(self.log),
                "--",
                sys.executable,
                "-c",
                script,
            ],
            stdin=subprocess.PIPE,
            start_new_session=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )
        deadline = time.monotonic() + 20
        while not pid_file.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        self.daemon = int(pid_file.read_text())

    def gone(self, within_s: float = 10) -> bool:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            try:
                if psutil.Process(self.daemon).status() == psutil.STATUS_ZOMBIE:
                    return True
            except psutil.NoSuchProcess:
                return True
            time.sleep(0.01)
        return False


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type[Guarded]]:
    made: list[Guarded] = []

    def build(then: str, limit_s: float = 0) -> Guarded:
        made.append(Guarded(tmp_path, then, limit_s))
        return made[-1]

    yield build  # type: ignore[misc]
    for guarded in made:
        guarded.process.kill()
        if psutil.pid_exists(guarded.daemon):
            psutil.Process(guarded.daemon).kill()


@pytest.mark.parametrize(
    ("then", "code"), [("sys.exit(0)", 0), ("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", 137)]
)
def test_when_the_command_ends_its_daemon_ends_and_the_code_is_honest(
    start: type[Guarded], then: str, code: int
) -> None:
    run = start(then)  # type: ignore[call-arg,arg-type]
    assert run.process.wait(timeout=20) == code
    assert run.gone()
    assert not run.temp.exists()


def test_when_the_launcher_dies_everything_ends(start: type[Guarded]) -> None:
    run = start("time.sleep(600)")  # type: ignore[call-arg,arg-type]
    assert psutil.pid_exists(run.daemon)
    assert run.process.stdin is not None
    run.process.stdin.close()  # what the kernel does to the pipe of a launcher killed by kill -9
    assert run.process.wait(timeout=20) == guard.STOPPED
    assert run.gone()
    assert not run.temp.exists()


def test_a_signal_ends_everything(start: type[Guarded]) -> None:
    run = start("time.sleep(600)")  # type: ignore[call-arg,arg-type]
    run.process.terminate()
    assert run.process.wait(timeout=20) == guard.STOPPED
    assert run.gone()


def test_the_time_limit_is_hard(start: type[Guarded]) -> None:
    ignore = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    run = start(ignore, limit_s=1.0)  # type: ignore[call-arg,arg-type]
    assert run.process.wait(timeout=20) == guard.TIME_LIMIT
    assert run.gone()


def test_the_log_holds_what_the_command_said(start: type[Guarded]) -> None:
    run = start("print('hello'); print('oops', file=sys.stderr)")  # type: ignore[call-arg,arg-type]
    run.process.wait(timeout=20)
    log = run.log.read_text()
    assert "hello" in log and "oops" in log and "CPU seconds of all processes" in log


def test_a_guard_that_is_killed_itself_leaves_nothing_to_its_launcher(start: type[Guarded]) -> None:
    run = start("subprocess.Popen(['sleep', '600']); time.sleep(600)")  # type: ignore[call-arg,arg-type]
    family = psutil.Process(run.process.pid).children(recursive=True)
    run.process.kill()
    run.process.wait(timeout=20)
    guard.end_session(run.process.pid)
    escaped = psutil.Process(run.daemon)  # it left the session; only a living guard reaches that far
    assert psutil.wait_procs([p for p in family if p.pid != run.daemon], timeout=10)[1] == []
    escaped.kill()
