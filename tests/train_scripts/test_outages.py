"""Processes that die in the middle of a run: tool server, training worker, queue. Slow, with Ray."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = pytest.mark.slow

SMALL = [
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
]
PATIENCE_S = 420  # of this test with a busy machine, not of the run


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def until(condition: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


class Run:
    """`scout train` on the small model; ``again`` gives the same command."""

    def __init__(self, model: Path, rows: Path, url: str, out: Path, *more: str) -> None:
        self.out = out
        settings = [x for s in SMALL for x in ("--set", s)]
        files = ["--model", str(model), "--train", str(rows), "--tools", url, "--out", str(out)]
        self.argv = [sys.executable, "-m", "scout_train.launch", *files, *settings, *more]

    def start(self) -> subprocess.Popen[str]:
        env = os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
        return subprocess.Popen(
            self.argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def steps(self) -> list[dict[str, Any]]:
        return read(self.out / "metrics.jsonl")

    def traces(self) -> list[dict[str, Any]]:
        return read(self.out / "traces.jsonl")

    def trained_only_what_was_scored(self) -> None:
        """The mean reward of every step is that of its scored traces: nothing of an outage is in it."""
        for line in self.steps():
            totals = [
                t["score"]["total"]
                for t in self.traces()
                if t["step"] == line["step"] and t["stop_reason"] != "infra_error"
            ]
            assert line["scout/trained_trajectories"] == len(totals)
            assert line["critic/score/mean"] == pytest.approx(sum(totals) / len(totals), abs=1e-5)
            assert line["scout/retokenisation_drift"] == 0


class Tool:
    """The tool server's process."""

    def __init__(self) -> None:
        self.port = 0
        self.start()

    def start(self) -> None:
        script = str(Path(__file__).with_name("tool_process.py"))
        self.process = subprocess.Popen(
            [sys.executable, script, str(self.port)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def tool() -> Iterator[Tool]:
    server = Tool()
    yield server
    server.kill()


def test_a_killed_tool_server_pauses_the_run_which_goes_on_when_it_is_back(
    model_dir: Path, rows_file: Path, tool: Tool, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{tool.port}"
    run = Run(model_dir, rows_file, url, tmp_path / "run", "--steps", "8", "--save-every", "50")
    process = run.start()
    until(lambda: len(run.steps()) >= 2)
    tool.kill()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3, said
    last = run.steps()[-1]["step"]
    assert "more than 5%" in said and "connection:" in said and f"step {last} is saved" in said
    assert (run.out / "ckpt" / f"global_step_{last}" / "data.pt").is_file()

    tool.start()
    process = run.start()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert f"going on from step {last}" in said
    assert [m["step"] for m in run.steps()] == list(range(1, 9))
    run.trained_only_what_was_scored()


def test_a_run_with_patience_outlives_a_restart(
    model_dir: Path, rows_file: Path, tool: Tool, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{tool.port}"
    patience = ["--set", "scout.tools.outage_patience_s=120"]
    run = Run(model_dir, rows_file, url, tmp_path / "run", "--steps", "6", *patience)
    process = run.start()
    until(lambda: len(run.steps()) >= 2)
    tool.kill()
    lines = len(run.traces())
    time.sleep(3)  # the outage itself
    assert len(run.traces()) - lines < 16 and process.poll() is None
    tool.start()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert Counter(t["step"] for t in run.traces()) == dict.fromkeys(range(1, 7), 16)
    assert all(m["scout/infra_errors"] == 0 for m in run.steps())
    run.trained_only_what_was_scored()


@pytest.mark.parametrize(
    ("victim", "how", "code", "says"),
    [
        ("WorkerDict", signal.SIGKILL, 1, "the process WorkerDict"),  # training and rollout
        ("WorkerDict", signal.SIGSTOP, 4, "no progress for 60 s"),
        ("StorageUnit", signal.SIGKILL, 1, "the process StorageUnit"),  # where trajectories wait
        ("scout_train.runner", signal.SIGKILL, 137, "signal 9"),  # the trainer and its agent loops
    ],
    ids=lambda v: str(getattr(v, "name", v)),
)
def test_a_process_that_dies_ends_the_run_and_the_same_command_goes_on(
    model_dir: Path,
    rows_file: Path,
    tool: Tool,
    tmp_path: Path,
    victim: str,
    how: signal.Signals,
    code: int,
    says: str,
) -> None:
    url = f"http://127.0.0.1:{tool.port}"
    stall_s = 60 if how is signal.SIGSTOP else 600  # only a process that hangs is for the watchdog to find
    options = ["--steps", "6", "--save-every", "1", "--stall-timeout-s", str(stall_s)]
    run = Run(model_dir, rows_file, url, tmp_path / "run", *options)
    process = run.start()
    until(lambda: len(run.steps()) >= 2)
    family = psutil.Process(process.pid).children(recursive=True)
    hit = [p for p in family if any(victim in part for part in p.cmdline())]
    hit = [p for p in hit if "scout_train.guard" not in p.cmdline()]
    assert hit, [p.cmdline()[:3] for p in family]
    for p in hit:
        p.send_signal(how)
    start = time.monotonic()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code and says in said, said
    assert time.monotonic() - start < (120 if how is signal.SIGSTOP else 30), "it came late"
    assert psutil.wait_procs(family, timeout=20)[1] == [], "something outlived its launcher"

    process = run.start()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert [m["step"] for m in run.steps()] == [1, 2, 3, 4, 5, 6]
    run.trained_only_what_was_scored()


def test_dapo_carries_surplus_over_and_through_a_kill(
    model_dir: Path, rows_file: Path, tool: Tool, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{tool.port}"
    options = ["--algo", "dapo", "--steps", "8", "--save-every", "1"]
    bound = ["--set", "algorithm.filter_groups.max_num_gen_batches=40"]
    run = Run(model_dir, rows_file, url, tmp_path / "run", *options, *bound)
    process = run.start()

    def carried() -> bool:
        return any(m["scout/groups_carried_out"] for m in run.steps()[1:])

    until(lambda: process.poll() is not None or carried())
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process = run.start()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    lines = run.steps()
    assert [m["step"] for m in lines] == list(range(1, 9))
    for before, after in itertools.pairwise(lines):
        assert after["scout/groups_carried_in"] == before["scout/groups_carried_out"]
    for m in lines:
        used = m["scout/groups_carried_in"] + m["scout/groups_generated"] - m["scout/groups_evicted"]
        assert used == 4 + m["scout/groups_carried_out"]
        assert m["scout/age_steps_max"] == (1 if m["scout/groups_carried_in"] else 0)
        assert m["scout/zero_variance_group_share"] == 0 and m["scout/trained_trajectories"] == 16
        own = [t["n_policy_tokens"] for t in run.traces() if t["step"] in (m["step"], m["step"] - 1)]
        assert min(own) <= m["response_length/mean"] <= max(own)
    assert sum(m["scout/groups_carried_in"] for m in lines) > 0


def test_a_few_lost_trajectories_leave_no_trace_in_the_step(
    model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path
) -> None:
    """A short outage below the limit: the step goes on with the members that are left, and only with them."""
    options = ["--steps", "5", "--set", "scout.sampler.max_infra_error_share=0.6"]
    run = Run(model_dir, rows_file, tool_server.url, tmp_path / "run", *options)
    process = run.start()
    until(lambda: len(run.steps()) >= 1 or process.poll() is not None)
    tool_server.broken_calls = 4
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    assert [m["step"] for m in run.steps()] == [1, 2, 3, 4, 5]
    lossy = [m for m in run.steps() if m["scout/infra_errors"]]
    assert lossy and sum(m["scout/infra_errors"] for m in lossy) == 4
    for m in lossy:
        # groups that kept two members stay, with padding that carries no loss; others were drawn anew
        assert m["scout/trained_trajectories"] < m["scout/trajectories"]
        assert m["scout/trajectories_lost"] == m["scout/infra_errors"]
    for line in run.steps():
        seen = [t for t in run.traces() if t["step"] == line["step"]]
        groups = Counter(t["extra"]["group"] for t in seen if t["stop_reason"] != "infra_error")
        used = [
            t["score"]["total"]
            for t in seen
            if t["stop_reason"] != "infra_error" and groups[t["extra"]["group"]] >= 2
        ]
        assert line["scout/trained_trajectories"] == len(used)
        assert line["critic/score/mean"] == pytest.approx(sum(used) / len(used), abs=1e-5)
