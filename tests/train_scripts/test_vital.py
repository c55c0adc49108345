"""A process that a run cannot do without: found by its title, missed when it dies. With real processes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from scout_train.vital import Vital

CHILD = ["bash", "-c", 'exec -a "$0" sleep 600']


@pytest.fixture
def children() -> Iterator[list[subprocess.Popen[bytes]]]:
    titles = (
        "ray::WorkerDict.actor_rollout_update_actor",
        "ray::IDLE",
        "ray::SimpleStorageUnit",
        "bystander",
    )
    started = [subprocess.Popen([*CHILD, title]) for title in titles]
    for process, title in zip(started, titles, strict=True):
        while psutil.Process(process.pid).cmdline()[:1] != [title]:  # until bash has become it
            assert process.poll() is None
    yield started
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("reaped", [False, True])
def test_the_vital_ones_are_found_and_missed(children: list[subprocess.Popen[bytes]], reaped: bool) -> None:
    vital = Vital()
    try:
        assert vital.start(psutil.Process()) == ["StorageUnit", "WorkerDict"]
        for bystander in (children[1], children[3]):
            bystander.kill()
            bystander.wait()
        assert vital.dead() == ""
        vital.stop()  # the thread would end this process
        vital = Vital()
        vital._processes = {psutil.Process(children[0].pid): "WorkerDict"}
        children[0].kill()
        if reaped:
            children[0].wait()
        while not vital.dead():  # a signal takes a moment
            pass
        assert f"WorkerDict (pid {children[0].pid}) died" in vital.dead()
    finally:
        vital.stop()


SCRIPT = """
import psutil, subprocess, sys
from scout_train.vital import Vital
child = subprocess.Popen(["bash", "-c", 'exec -a "$0" sleep 600', "ray::WorkerDict"])
while psutil.Process(child.pid).cmdline()[:1] != ["ray::WorkerDict"]:
    pass
vital = Vital()
print(*vital.start(psutil.Process()), child.pid, flush=True)
for line in sys.stdin:
    vital.stop()
    print("stopped", flush=True)
child.wait()
sys.exit(0)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_a_death_ends_the_process_unless_it_was_told_to_stop(stopped: bool) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": ":".join(p for p in sys.path if p)},
    )
    assert run.stdin and run.stdout and run.stderr
    name, pid = run.stdout.readline().split()
    assert name == "WorkerDict"
    if stopped:
        run.stdin.write("stop\n")
        run.stdin.flush()
        assert run.stdout.readline() == "stopped\n"
        run.stdin.close()
    psutil.Process(int(pid)).kill()
    code = run.wait(timeout=60)
    said = run.stderr.read()
    assert code == (0 if stopped else 1), said
    assert ("[scout] error: the process WorkerDict" in said) is not stopped
