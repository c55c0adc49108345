"""Watching a child process: its metrics, its silence, its end."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from scout_protocol.errors import UserError
from scout_sft import launch
from scout_sft.launch import MetricsTail, watch
from scout_sft.progress import Progress, clock


def test_a_line_that_is_still_being_written_waits(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    tail = MetricsTail(path)
    assert tail.new() == []
    path.write_text('{"step": 1, "data": {"a": 1}}\n{"step": 2, "da')
    assert tail.new() == [(1, {"a": 1})]
    assert tail.new() == []
    with path.open("a") as file:
        file.write('ta": {"a": 2}}\n')
    assert tail.new() == [(2, {"a": 2})]


def test_metrics_arrive_and_the_status_comes_back(tmp_path: Path) -> None:
    metrics = tmp_path / "m.jsonl"
    code = f"open({str(metrics)!r}, 'w').write('{{\"step\": 4, \"data\": {{}}}}\\n'); raise SystemExit(3)"
    seen: list[int] = []
    status = watch(
        [sys.executable, "-c", code],
        dict(os.environ),
        tmp_path / "log",
        MetricsTail(metrics),
        lambda step, _: seen.append(step),
        60,
    )
    assert (status, seen) == (3, [4])


def test_a_silent_trainer_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "STARTUP_S", 1.5)
    pids = tmp_path / "pids"
    code = (
        "import subprocess, sys, os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setattr(launch, "PATIENCE_S", 0.2)
    with pytest.raises(UserError, match="no step for 0 s"):
        watch(
            [sys.executable, "-c", code],
            dict(os.environ),
            tmp_path / "log",
            MetricsTail(tmp_path / "m.jsonl"),
            lambda *_: None,
            0.1,
        )

    def alive(pid: int) -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        return False

    deadline = time.monotonic() + 10  # a killed process may wait for a core to die on
    while any(map(alive, map(int, pids.read_text().split()))):
        assert time.monotonic() < deadline


def test_progress_says_how_much_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    progress = Progress("steps", total=100, done=40)
    assert progress.line("") == "steps 40/100 (40%) · 0:00 spent · ? left"
    now = 130.0  # start-up does not count as pace
    progress.update(40)
    now = 140.0
    progress.update(60)
    assert progress.line("loss 1.0") == "steps 60/100 (60%) · 0:40 spent · 0:20 left · loss 1.0"
    assert [clock(s) for s in (5, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
