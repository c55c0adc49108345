"""`scout view` as a process, on files that the other rooms' own writers wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from scout_eval.trace_log import TraceLog as EvalLog
from scout_protocol.records import Trace
from scout_train.traces import TraceLog as TrainLog

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]


def _scout(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "scout_cli.main", "view", *args],
        capture_output=True, text=True, timeout=60, env={**os.environ, **env},
    )  # fmt: skip


def test_reads_what_training_and_evaluation_write(trace: Make, tmp_path: Path) -> None:
    made = msgspec.json.decode(json.dumps(trace(question_id="from-training")), type=Trace)
    made.score["shaping"] = {}  # `Score` always has it
    (tmp_path / "grpo").mkdir()
    training = TrainLog(tmp_path / "grpo" / "traces.jsonl")
    training.write(made, train=True)
    training.close()
    made.question_id, made.extra, made.stage = "from-evaluation", {"control": "blank"}, "sft"
    (tmp_path / "eval" / "sft.blank").mkdir(parents=True)
    with EvalLog(tmp_path / "eval" / "sft.blank" / "traces.jsonl") as log:
        log.append(made)
    done = _scout(str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert "✓ right · sft.blank step 1" in done.stdout
    assert done.stdout.index("from-evaluation") < done.stdout.index("from-training")
    assert "\x1b" not in done.stdout  # a pipe gets no colours
    only = _scout(str(tmp_path), "--stage", "sft.blank").stdout
    assert "from-evaluation" in only and "from-training" not in only


def test_wrong_input_is_one_line_and_status_2(tmp_path: Path, write: Write, trace: Make) -> None:
    absent = _scout(str(tmp_path / "absent.jsonl"))
    path = write([trace()])
    path.write_bytes(b"{}\n")
    bad = _scout(str(path))
    unknown = _scout(str(path), "--where", "nowhere")
    assert [absent.returncode, bad.returncode, unknown.returncode] == [2, 2, 2]
    assert absent.stderr.count("\n") == bad.stderr.count("\n") == 1
    assert bad.stderr.startswith(f"scout view: {path}:1: ")
    assert "trajectory_timeout" in unknown.stderr  # the closed set is named


def test_a_terminal_without_unicode_is_no_traceback(write: Write, trace: Make) -> None:
    done = _scout(str(write([trace(question="東京?")])), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "question  ???\n" in done.stdout


def test_a_reader_that_goes_away_is_no_traceback(write: Write, trace: Make) -> None:
    path = write([trace() for _ in range(2000)])
    command = f'{sys.executable} -m scout_cli.main view "{path}" --count 2000 | head -n 1'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout == "written by:  ▌prompt  ▌policy  ▌tool\n"
    assert done.stderr == ""
