"""The processes that a run cannot do without: one that dies ends the run at once, and is named.

Ray raises where a call of the trainer waits for a worker that died. A rollout that fails so looks like an
outage, and TransferQueue's storage is reached past Ray: nothing is raised, and the run would hang until the
stall limit. So the processes of this machine are looked at; those of other nodes are left to Ray and to
``--stall-timeout-s``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

import psutil

EVERY_S = 0.5
DIED = 1  # exit code
# Classes of Ray actors, by the title that Ray gives their processes, and Ray's own two.
ACTORS = ("WorkerDict", "StorageUnit", "TransferQueueController", "AgentLoopWorker")
DAEMONS = ("raylet", "gcs_server")


def _vital_name(process: psutil.Process) -> str:
    """How a person knows the process; empty for one that is not looked after."""
    with contextlib.suppress(psutil.Error, IndexError):
        name, title = str(process.name()), str(process.cmdline()[0])
        if name in DAEMONS:
            return name
        if title.startswith("ray::"):
            return next((actor for actor in ACTORS if actor in title), "")
    return ""


class Vital:
    """Looks after processes from `start` to `stop`."""

    def __init__(self) -> None:
        self._processes: dict[psutil.Process, str] = {}
        self._stopped = threading.Event()
        self._said = ""

    def start(self, family: psutil.Process) -> list[str]:
        """Note the vital ones among the descendants of ``family``, and end this process when one dies.

        Returns:
            Their names.
        """
        found = {p: _vital_name(p) for p in family.children(recursive=True)}
        self._processes = {p: name for p, name in found.items() if name}
        threading.Thread(target=self._run, name="vital", daemon=True).start()
        return sorted(self._processes.values())

    def dead(self) -> str:
        """What to say of the first process that is gone; empty while all are there, or were at `stop`."""
        if self._stopped.is_set():
            return self._said
        for process, name in self._processes.items():
            gone = not process.is_running()
            with contextlib.suppress(psutil.NoSuchProcess):
                gone = gone or process.status() == psutil.STATUS_ZOMBIE
            if gone:
                return (
                    f"the process {name} (pid {process.pid}) died, often of a lack of memory; the same "
                    "command goes on from the last checkpoint"
                )
        return ""

    def stop(self, patience_s: float = 0.0) -> str:
        """From now on they may end: what `dead` says is decided here, before Ray shuts itself down.

        Args:
            patience_s: look for so long whether one has died: Ray's error comes before it is gone.

        Returns:
            What `dead` says from now on.
        """
        deadline = time.monotonic() + patience_s
        while not (said := self.dead()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._said = said
        self._stopped.set()
        self._processes = {}
        return said

    def end_if_dead(self) -> None:
        """After an exception: end this process if a death explains it, else stop looking (see `stop`)."""
        if said := self.stop(EVERY_S):
            _end(said)

    def _run(self) -> None:
        while not self._stopped.wait(EVERY_S):
            if said := self.dead():
                _end(said)


def _end(said: str) -> None:
    print(f"[scout] error: {said}", file=sys.stderr, flush=True)
    os._exit(DIED)


VITAL = Vital()


def watch_run() -> None:
    """Look after the processes of this run: those that the guard, our parent, will end."""
    names = VITAL.start(psutil.Process(os.getppid()))
    print(f"[scout] looking after {', '.join(names)}", flush=True)
