"""Starting the trainer, watching it, and making sure that nothing of it outlives the command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_sft.verl_config import TrainSettings

POLL_S = 0.2
PATIENCE_S = 5.0  # between asking a trainer to end and ending it
STARTUP_S = 300.0  # imports and the first step may take this much longer than a step


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def worker_command(settings: TrainSettings, job: Path) -> list[str]:
    """How to start the trainer.

    One process needs no torchrun: it would set the five variables of `worker_env` and watch one child, for
    three more seconds of imports. More processes go through it.
    """
    base = [sys.executable, "-m", "scout_sft.worker", str(job)]
    return base if settings.nproc == 1 else [*base, "--torchrun", str(settings.nproc)]


def worker_env(settings: TrainSettings, metrics: Path, tensorboard: Path) -> dict[str, str]:
    """The environment of the trainer: torchrun's variables, verl's plug-in by name, where metrics go."""
    env = dict(os.environ)
    env.update(
        VERL_FILE_LOGGER_PATH=str(metrics),
        TENSORBOARD_DIR=str(tensorboard),
        OMP_NUM_THREADS=str(settings.threads),
        # A thread that spins while it waits takes the core from the one it waits for.
        OMP_WAIT_POLICY="passive",
        HYDRA_FULL_ERROR="1",
        PYTHONWARNINGS="ignore",
    )
    env.setdefault("HF_HUB_OFFLINE", "1")
    if settings.device == "cpu":
        env.update(VERL_USE_EXTERNAL_MODULES=settings.platform_module, VERL_PLATFORM="cpu")
    if settings.nproc == 1:
        env.update(
            RANK="0",
            LOCAL_RANK="0",
            WORLD_SIZE="1",
            LOCAL_WORLD_SIZE="1",
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(free_port()),
        )
    return env


@contextlib.contextmanager
def terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind the stack as ctrl-C does, so that `finally` blocks run."""

    def interrupt(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    try:
        before = {s: signal.signal(s, interrupt) for s in (signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread: signals are somebody else's business
        yield
        return
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def stop_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and everything in its session."""
    for signum, patience_s in ((signal.SIGTERM, PATIENCE_S), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
            break
    # the leader may be gone and a child not
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


class MetricsTail:
    """The complete lines that verl's file logger has written since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def new(self) -> list[tuple[int, dict[str, Any]]]:
        """New ``(step, metrics)`` pairs; a line that is still being written waits."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._offset)
            block = file.read()
        end = block.rfind(b"\n") + 1
        self._offset += end
        lines = [json.loads(line) for line in block[:end].splitlines()]
        return [(int(line["step"]), line["data"]) for line in lines]


def watch(
    command: list[str],
    env: dict[str, str],
    log: Path,
    tail: MetricsTail,
    on_metrics: Callable[[int, dict[str, Any]], None],
    stall_timeout_s: float,
    enough: Callable[[], bool] = lambda: False,
) -> int:
    """Run the trainer to its end and hand on its metrics; returns its exit status, 0 where it was enough.

    Args:
        log: where its output goes.
        enough: asked again and again; once it is true the trainer is ended. The time it takes is no silence.
        stall_timeout_s: longest silence of the metrics; the first one may take `STARTUP_S` longer.

    Raises:
        UserError: it made no progress for that long; it has been ended.
    """
    with log.open("wb") as output, terminated_as_interrupt():
        process = subprocess.Popen(  # noqa: S603 - our own module
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + STARTUP_S + stall_timeout_s
            while True:
                status = process.poll()
                for step, metrics in tail.new():
                    deadline = time.monotonic() + stall_timeout_s
                    on_metrics(step, metrics)
                if status is not None:
                    return status
                asked = time.monotonic()
                if enough():
                    return 0
                deadline += time.monotonic() - asked
                if time.monotonic() > deadline:
                    raise UserError(
                        "the trainer",
                        f"no step for {stall_timeout_s:.0f} s",
                        f"was ended; its output is in {log}",
                    )
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
        finally:
            stop_group(process)
