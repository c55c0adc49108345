"""Runs one command and leaves nothing of it behind: `… -m scout_train.guard TEMP LIMIT_S LOG -- COMMAND…`

The guard stands between the launcher and the trainer. It adopts every orphan among its descendants (Linux:
child subreaper), so Ray's daemons cannot slip away, and it ends all of them when the command exits, when the
time limit passes, on a signal, or when the launcher dies: its standard input is a pipe that only the launcher
holds. It never touches a process that it did not bring forth.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import psutil

TIME_LIMIT, STOPPED = 124, 143  # exit codes, besides those of the command
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_parent() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def end_descendants(known: dict[int, float], patience_s: float = 10.0) -> None:
    """Kill every descendant of this process, and ``known`` ones (pid -> creation time) that were orphaned."""
    me, deadline = psutil.Process(), time.monotonic() + patience_s
    while time.monotonic() < deadline:
        left = {p.pid: p for p in me.children(recursive=True)}
        for pid, created in known.items():
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.create_time() == created:
                    left[pid] = process
        alive = 0
        for process in left.values():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive += 1
                    process.kill()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            alive += 1  # a child is left, if only as a zombie of one that is just ending
        if not alive:
            return
        time.sleep(0.02)


def end_session(session: int) -> None:
    """Kill what is left of a guard's session: for the launcher, in case the guard itself was killed.

    A session's number is not given out again while it has members, so nothing else can be hit.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == session:
                process.kill()


def watch(child: subprocess.Popen[bytes], limit_s: float, stopped: Callable[[], bool]) -> int:
    """Wait for the command, the limit (0: none), a stop or the end of our standard input."""
    start = time.monotonic()
    known: dict[int, float] = {}
    try:
        while True:
            readable, _, _ = select.select([sys.stdin], [], [], 0.1)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                return STOPPED
            code = child.poll()
            if code is not None:
                return code if code >= 0 else 128 - code
            if stopped():
                return STOPPED
            if limit_s and time.monotonic() - start > limit_s:
                return TIME_LIMIT
            if sys.platform != "linux":  # no subreaper: remember descendants while their parents live
                for process in psutil.Process().children(recursive=True):
                    known[process.pid] = process.create_time()
    finally:
        end_descendants(known)


def main(argv: list[str]) -> int:
    """``TEMP LIMIT_S LOG -- COMMAND…``; the exit code is the command's, or `TIME_LIMIT`, or `STOPPED`."""
    temp_dir, limit_s, log_path = argv[0], float(argv[1]), argv[2]
    command = argv[argv.index("--") + 1 :]
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda n, _frame: stops.append(n))
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        with open(log_path, "ab") as log:  # noqa: PTH123
            child = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
            code = watch(child, limit_s, lambda: bool(stops))
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            # Every descendant was adopted and reaped, so this is the whole tree.
            log.write(b"[scout] CPU seconds of all processes: %.1f\n" % (used.ru_utime + used.ru_stime))
            return code
    finally:
        shutil.rmtree(temp_dir, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
