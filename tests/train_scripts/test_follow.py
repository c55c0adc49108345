"""What the launcher tells people: progress, stalls, and the reason of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from scout_train.follow import Follower, failure, step_line


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("x\n[scout] error: prompt too long\nValueError: later\n", "prompt too long"),
        (
            "Traceback (most recent call last):\n  File x\nValueError: bad size\n[scout] CPU seconds: 3\n",
            "ValueError: bad size",
        ),
        ("\x1b[36m(WorkerDict pid=7)\x1b[0m RuntimeError: no memory\ngoodbye\n", "RuntimeError: no memory"),
        (
            "ray.exceptions.ActorDiedError: The actor died.\n",
            "ray.exceptions.ActorDiedError: The actor died.",
        ),
        ("  warnings.warn(ModuleNotFoundError('x'))\nlast words\n\n", "last words"),
        (
            "E rpc_client.h: Failed to connect\n[scout] CPU seconds of all processes: 3\n",
            "E rpc_client.h: Failed to connect",
        ),
        ("", "the log is empty"),
    ],
)
def test_the_reason_of_a_failure(tmp_path: Path, log: str, says: str) -> None:
    (tmp_path / "console.log").write_text(log)
    assert failure(tmp_path / "console.log") == says


def test_a_missing_log_is_said(tmp_path: Path) -> None:
    assert failure(tmp_path / "none") == "the run left no log"


def test_only_new_whole_lines_are_progress(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n')
    follower = Follower(tmp_path, 10)
    assert follower.new_steps() == []
    with metrics.open("a") as file:
        file.write('{"step": 2}\n{"step": 3')
    assert [m["step"] for m in follower.new_steps()] == [2]
    with metrics.open("a") as file:
        file.write("}\n")
    assert [m["step"] for m in follower.new_steps()] == [3]


def test_a_run_that_stops_growing_is_stalled_even_if_it_still_talks(tmp_path: Path) -> None:
    clock = [0.0]
    follower = Follower(tmp_path, 10, now=lambda: clock[0])
    log, traces = tmp_path / "console.log", tmp_path / "traces.jsonl"

    def tick(seconds: float, **grow: str) -> bool:
        for name, text in grow.items():
            with (tmp_path / f"{name}.{'log' if name == 'console' else 'jsonl'}").open("a") as file:
                file.write(text)
        clock[0] += seconds
        return follower.stalled()

    assert not tick(1, console="starting")
    assert not tick(9, console="still starting")
    assert not tick(9, console="and more")  # before the first step the log counts
    assert not tick(9, traces="{}\n")
    assert not tick(9, console="pending: 3")
    assert tick(2, console="pending: 3")  # after it, only trajectories and steps do
    assert not tick(1, metrics="{}\n")
    assert log.exists() and traces.exists()


def test_zero_means_no_limit(tmp_path: Path) -> None:
    clock = [0.0]
    follower = Follower(tmp_path, 0, now=lambda: clock[0])
    clock[0] = 1e9
    assert not follower.stalled()


def test_a_step_in_one_line() -> None:
    metrics = {
        "step": 3,
        "scout/em": 0.5,
        "timing_s/step": 2.34,
        "scout/infra_errors": 2,
        "actor/grad_norm": None,
    }
    assert step_line(metrics, 40) == "step 3/40 · EM 0.500 · 2.3 s · 2 infra errors"
