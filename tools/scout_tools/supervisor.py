"""Keeps N forked workers alive: starts them, replaces the dead, and stops all of them together.

One thread and one selector: signals, readiness reports and deaths arrive as events, nothing is polled.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from scout_tools import log

START_TIMEOUT_S = 60.0
FAST_S = 5.0  # a worker that dies sooner than this died fast
MAX_FAST_DEATHS = 5  # in a row, of every worker: something is wrong for good
MAX_DELAY_S = 5.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

# (slot, pipe to report on, pipe that closes with the supervisor) -> exit status
Work = Callable[[int, int, int], int]


class WorkerError(Exception):
    """A worker said in one line why it cannot start."""


@dataclass
class _Slot:
    """The place of one worker. ``report`` is open until the worker said that it is ready."""

    pid: int = 0
    report: int = -1
    started: float = 0.0
    fast_deaths: int = 0
    restart_at: float | None = None

    @property
    def ready(self) -> bool:
        return self.pid != 0 and self.report < 0


class Supervisor:
    """Run ``work`` in ``n`` processes until told to stop.

    Args:
        watch_pid: stop when this process ends; None to stop on signals only.
        stop_timeout_s: workers that have not ended so long after a stop are killed.
    """

    def __init__(
        self, n: int, work: Work, watch_pid: int | None = None, stop_timeout_s: float = 12.0
    ) -> None:
        self._work, self._slots, self._stop_timeout_s = work, [_Slot() for _ in range(n)], stop_timeout_s
        self._life_read, self._life_write = os.pipe()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._watch_pid, self._watched = watch_pid, _watch(watch_pid)
        if self._watched is not None:
            self._selector.register(self._watched, selectors.EVENT_READ)
        self._announced = self._stopping = self._failed = False
        self._start_by = self._stop_by = float("inf")

    def run(self, on_ready: Callable[[], None]) -> int:
        """Block until stopped; 0 after a signal, 1 if workers kept dying, or one died with accepted requests.

        Raises:
            WorkerError: a worker cannot start; all others are stopped first.
        """
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        self._start_by = time.monotonic() + START_TIMEOUT_S
        try:
            for slot in range(len(self._slots)):
                self._start(slot)
            while not self._stopping or any(slot.pid for slot in self._slots):
                self._wait()
                if not self._announced and not self._stopping and all(s.ready for s in self._slots):
                    self._announced, self._start_by = True, float("inf")
                    on_ready()
        finally:
            self._kill(signal.SIGKILL)
        return 1 if self._failed else 0

    def _start(self, index: int) -> None:
        slot = self._slots[index]
        report_read, report_write = os.pipe()
        # Until the child has its own handlers, a signal to it must not land in our wake-up socket.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid == 0:
            status = 70
            try:
                signal.set_wakeup_fd(-1)
                for number in _SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                os.close(self._life_write)
                os.close(report_read)
                status = self._work(index, report_write, self._life_read)
            except BaseException as error:
                text = f"worker {os.getpid()}: {type(error).__name__}: {error}"
                log.say("error", "worker_failed", text)
            finally:
                os._exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(report_write)
        slot.pid, slot.report, slot.started, slot.restart_at = pid, report_read, time.monotonic(), None
        self._selector.register(report_read, selectors.EVENT_READ, slot)

    def _wait(self) -> None:
        """Handle what happens next: a report, a signal, a death, a due time."""
        due = [slot.restart_at for slot in self._slots if slot.restart_at is not None]
        due += [self._start_by, self._stop_by]
        if self._watch_pid is not None and self._watched is None:
            due.append(time.monotonic() + 1.0)
        wait = min(due) - time.monotonic()
        for key, _ in self._selector.select(None if wait == float("inf") else max(0.0, wait)):
            if isinstance(key.data, _Slot):
                self._reported(key.data)
            elif key.fileobj is self._wake_read:
                self._signalled(self._wake_read.recv(4096))
            else:
                self._selector.unregister(key.fileobj)
                self.stop()
        if self._watch_pid is not None and self._watched is None and not _alive(self._watch_pid):
            self.stop()
        self._reap()
        now = time.monotonic()
        if now >= self._stop_by:
            text = f"workers that had not ended {self._stop_timeout_s:g} s after the stop were killed"
            log.say("error", "stop_timeout", text)
            self._failed = True
            self._kill(signal.SIGKILL)
        if now >= self._start_by and not self._stopping:
            raise WorkerError(
                f"--workers: not ready after {START_TIMEOUT_S:.0f} s: is the machine overloaded?"
            )
        for index, slot in enumerate(self._slots):
            if not self._stopping and slot.restart_at is not None and now >= slot.restart_at:
                self._start(index)

    def _reported(self, slot: _Slot) -> None:
        words = os.read(slot.report, 4096)
        self._selector.unregister(slot.report)
        os.close(slot.report)
        slot.report = -1
        if words in (b"", b"ready") or self._stopping:
            return
        message = words.decode(errors="replace")
        if not self._announced:
            raise WorkerError(message)
        log.say(
            "error", "worker_failed", message
        )  # a replacement that cannot start: the others go on, and this one is tried again

    def _signalled(self, numbers: bytes) -> None:
        for number in numbers:
            if number == signal.SIGCHLD:
                continue
            if self._stopping and number == signal.SIGINT:
                self._kill(signal.SIGKILL)  # a second Ctrl-C means now
            self.stop()

    def stop(self) -> None:
        """Ask every worker to finish what it has accepted and go."""
        if not self._stopping:
            self._stopping, self._stop_by = True, time.monotonic() + self._stop_timeout_s
            self._kill(signal.SIGTERM)

    def _kill(self, number: signal.Signals) -> None:
        for slot in self._slots:
            slot.restart_at = None
            if slot.pid:
                os.kill(slot.pid, number)
        if number == signal.SIGKILL:
            for slot in self._slots:
                if slot.pid:
                    os.waitpid(slot.pid, 0)
                    slot.pid = 0

    def _reap(self) -> None:
        for slot in self._slots:
            if not slot.pid:
                continue
            ended, status = os.waitpid(slot.pid, os.WNOHANG)
            if ended == 0:
                continue
            pid, slot.pid = slot.pid, 0
            if slot.report >= 0:
                self._reported(slot)
            if self._stopping:
                # uvicorn ends by raising the signal that it was stopped with
                if os.waitstatus_to_exitcode(status) not in (0, -signal.SIGTERM, -signal.SIGINT):
                    log.say("error", "worker_died", f"worker {pid} died while it stopped", worker_pid=pid)
                    self._failed = True
                continue
            lived = time.monotonic() - slot.started
            slot.fast_deaths = slot.fast_deaths + 1 if lived < FAST_S else 0
            if all(s.fast_deaths >= MAX_FAST_DEATHS for s in self._slots):
                log.say("error", "gave_up", "every worker dies soon after its start: stopping")
                self._failed = True
                self.stop()
                return
            delay = min(MAX_DELAY_S, 0.1 * 2**slot.fast_deaths) if slot.fast_deaths > 1 else 0.0
            text = f"worker {pid} died, starting another" + (f" in {delay:.1f} s" if delay else "")
            log.say("warning", "worker_died", text, worker_pid=pid, delay_s=delay)
            slot.restart_at = time.monotonic() + delay


def _watch(pid: int | None) -> int | None:
    """A descriptor that becomes readable when the process ends; None where there is no such thing."""
    if pid is None or not hasattr(os, "pidfd_open"):  # Linux 5.3; elsewhere `_alive` is asked every second
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        raise WorkerError(f"--exit-with: {pid}: no such process ({error.strerror})") from error


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
