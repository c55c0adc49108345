"""Stages that run in order, each once: what is done has a stamp, and a killed run goes on after the last one.

A stage is a list of `scout` commands. Every one of them is resumable by itself, so a stage that was killed
in its middle is simply started again.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from scout_protocol.errors import UserError

_PR_SET_PDEATHSIG = 1
Command = Sequence[str | Path | int | float]


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of a pipeline.

    Attributes:
        name: key in ``stages.json``.
        title: what the reader sees.
        commands: arguments of `scout`, one list per command.
        expect_s: about how long it takes on two idle cores; for the ETA only.
    """

    name: str
    title: str
    commands: list[Command]
    expect_s: float


@dataclass(slots=True)
class StageFailedError(Exception):
    """A command of a stage ended with an error that it has told the reader about."""

    stage: str
    code: int


def _die_with_parent() -> None:
    """In a child: SIGTERM when the pipeline's process ends in whatever way, SIGKILL included."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def spawn(command: Command, **options: Any) -> subprocess.Popen[bytes]:
    """Start one `scout` command as a child that does not outlive this process."""
    line = [sys.executable, "-m", "scout_cli.main", *map(str, command)]
    return subprocess.Popen(line, preexec_fn=_die_with_parent, stdin=subprocess.DEVNULL, **options)  # noqa: S603


def _end(process: subprocess.Popen[bytes], patience_s: float = 30.0) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def scout(command: Command) -> tuple[int, float]:
    """Run one `scout` command in the foreground; ends it if we are interrupted.

    Returns:
        Its exit code, and the CPU seconds of it and all of its descendants.
    """
    import psutil

    waited_for_s = _children_cpu_s()
    process = spawn(command)
    meter = CpuMeter()
    try:
        root = psutil.Process(process.pid)
        while True:
            meter.look([root, *_descendants(root)])
            try:
                code = process.wait(timeout=0.25)
            except subprocess.TimeoutExpired:
                continue
            # Both miss something and neither counts anything twice: the larger is nearer.
            return code, max(meter.total_s(), _children_cpu_s() - waited_for_s)
    finally:
        _end(process)


def _children_cpu_s() -> float:
    """CPU seconds of all children that have been waited for, and of theirs that they had waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _descendants(root: Any) -> list[Any]:
    import psutil

    try:
        return list(root.children(recursive=True))
    except psutil.Error:
        return []


class CpuMeter:
    """CPU seconds of a changing set of processes, by looking at them now and then.

    Waiting for a child counts only what its own parent has waited for, and Ray's daemon waits for none of its
    workers. What a process uses after the last look at it is missed: at most a quarter of a second each.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[int, float], float] = {}

    def look(self, processes: Sequence[Any]) -> None:
        """Note what every process has used so far; one that is gone keeps its last figure."""
        import psutil

        for process in processes:
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                self._seen[process.pid, process.create_time()] = times.user + times.system

    def total_s(self) -> float:
        """Seconds of user and system time, all processes together."""
        return sum(self._seen.values())


@contextlib.contextmanager
def tool_server(index: Path, topk: int, log: Path, workers: int = 1) -> Iterator[str]:
    """A tool server on a free loopback port for as long as the block runs; yields its URL.

    Raises:
        UserError: the server did not become ready.
    """
    ready = log.with_suffix(".ready.json")
    ready.unlink(missing_ok=True)
    command: Command = (
        *("serve", "--port", 0, "--workers", workers, "--index", index, "--topk", topk),
        *("--ready-file", ready, "--exit-with", os.getpid()),
    )
    with log.open("ab") as file:
        process = spawn(command, stdout=file, stderr=file)
        try:
            deadline = time.monotonic() + 60
            while not ready.is_file():
                if process.poll() is not None or time.monotonic() > deadline:
                    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                    raise UserError("tool server", "did not start", f"{' '.join(last)} (log: {log})")
                time.sleep(0.02)
            yield str(json.loads(ready.read_text())["url"])
        finally:
            _end(process)


@dataclass(slots=True)
class Pipeline:
    """The stamps of one run folder.

    Args:
        folder: of the run; created.
        settings: what the run is made with; another run there with other settings is refused.
    """

    folder: Path
    settings: dict[str, Any]
    console: Console = field(default_factory=Console)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """The folder, for us alone.

        Raises:
            UserError: the folder is not writable, in use, or belongs to a run with other settings.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / ".pipeline.lock").open("w")
        except OSError as error:
            raise UserError("--run", self.folder, f"{error.strerror}: choose a writable folder") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise UserError("--run", self.folder, "is in use by another process: wait for it") from error
            saved = self.folder / "settings.json"
            if not saved.is_file():
                _write_json(saved, self.settings)
            elif json.loads(saved.read_text()) != self.settings:
                remedy = "holds a run with other settings: choose another folder or delete it"
                raise UserError("--run", self.folder, remedy)
            yield

    @property
    def _stamps_file(self) -> Path:
        return self.folder / "stages.json"

    def stamps(self) -> dict[str, dict[str, Any]]:
        """``{stage: {wall_s, cpu_s, done_at}}`` of the finished stages; times of all attempts together."""
        if not self._stamps_file.is_file():
            return {}
        loaded: dict[str, dict[str, Any]] = json.loads(self._stamps_file.read_text())
        return {name: stamp for name, stamp in loaded.items() if stamp.get("done_at")}

    def run(self, stages: Sequence[Stage], start: int = 0, stop: int | None = None) -> None:
        """Run what has no stamp yet of ``stages[start:stop]``, in order; numbers and ETA are of all stages.

        Raises:
            StageFailedError: a command failed; the stages before it keep their stamps.
        """
        done = self.stamps()
        for number, stage in list(enumerate(stages, start=1))[start:stop]:
            head = f"[{number}/{len(stages)}] {stage.title}"
            if stage.name in done:
                self.console.print(
                    f"{head}: done {done[stage.name]['done_at']}", style="dim", highlight=False
                )
                continue
            left_s = sum(s.expect_s for s in stages[number - 1 :] if s.name not in done)
            eta = f"about {_minutes(stage.expect_s)}, {_minutes(left_s)} left in all"
            self.console.print(f"[bold]{head}[/bold]  ({eta})", highlight=False)
            self._run_stage(stage)

    def _run_stage(self, stage: Stage) -> None:
        every = json.loads(self._stamps_file.read_text()) if self._stamps_file.is_file() else {}
        before = every.get(stage.name, {"wall_s": 0.0, "cpu_s": 0.0})
        wall, cpu_s, code = time.monotonic(), 0.0, 0
        for command in stage.commands:
            code, used_s = scout(command)
            cpu_s += used_s
            if code:
                break
        every[stage.name] = {
            "wall_s": round(before["wall_s"] + time.monotonic() - wall, 2),
            "cpu_s": round(before["cpu_s"] + cpu_s, 2),
            "done_at": "" if code else datetime.now(UTC).isoformat(timespec="seconds"),
        }
        _write_json(self._stamps_file, every)
        if code:
            raise StageFailedError(stage.name, code)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def _write_json(path: Path, value: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value, indent=2) + "\n")
    temporary.replace(path)
