"""`scout train --engine verl_tool` with Ray and verl-tool's trainer: steps, resuming, kills and outages."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from test_outages import PATIENCE_S, Run, Tool, until
from verl_tool_place import needs_engine

from scout_protocol.records import Author, Trace

pytestmark = [needs_engine, pytest.mark.slow, pytest.mark.timeout(6 * PATIENCE_S)]


@pytest.fixture
def tool() -> Iterator[Tool]:
    server = Tool()
    yield server
    server.kill()


class OurRun(Run):
    """A run of this engine; what a failed test leaves running is ended."""

    started: list[subprocess.Popen[str]] = []  # noqa: RUF012 (of the module, on purpose)

    def __init__(self, model: Path, rows: Path, url: str, out: Path, *more: str) -> None:
        super().__init__(model, rows, url, out, "--engine", "verl_tool", *more)

    def start(self) -> subprocess.Popen[str]:
        process = super().start()
        self.started.append(process)
        return process


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    while OurRun.started:
        process = OurRun.started.pop()
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=60)


def descendants() -> set[int]:
    return {p.pid for p in psutil.Process().children(recursive=True)}


def traces(out: Path) -> list[Trace]:
    return [msgspec.json.decode(x, type=Trace) for x in (out / "traces.jsonl").read_bytes().splitlines()]


def finish(process: subprocess.Popen[str], code: int) -> str:
    said, _ = process.communicate(timeout=3 * PATIENCE_S)
    assert process.returncode == code, said
    return said


def test_two_steps_of_grpo(model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path) -> None:
    run = OurRun(model_dir, rows_file, tool_server.url, tmp_path / "run", "--steps", "2")
    before = descendants()
    finish(run.start(), 0)
    assert descendants() <= before

    metrics = run.steps()
    assert [m["step"] for m in metrics] == [1, 2]
    for line in metrics:
        assert line["scout/trained_trajectories"] == line["scout/trajectories"] == 16
        assert line["training/rollout_probs_diff_max"] < 1e-3  # verl's own comparison with sampling
        assert sum(v for k, v in line.items() if k.startswith("scout/stop/")) == pytest.approx(1)
        assert line["timing_s/step"] > line["timing_s/gen"] > 0
    assert sum(m["actor/grad_norm"] for m in metrics) > 0
    run.trained_only_what_was_scored()
    found = traces(run.out)
    assert Counter(t.step for t in found) == {1: 16, 2: 16}
    groups = {t.extra["group"] for t in found}
    assert all(len({t.extra["member"] for t in found if t.extra["group"] == g}) == 4 for g in groups)
    for trace in found:
        own = [s for s in trace.spans if s.author is Author.POLICY]
        assert all(len(s.logprobs or ()) == len(s.token_ids or ()) > 0 for s in own)
        assert trace.n_policy_tokens == sum(len(s.token_ids or ()) for s in own)

    from transformers import AutoModelForCausalLM

    trained, start = (
        AutoModelForCausalLM.from_pretrained(p).state_dict() for p in (run.out / "hf", model_dir)
    )
    assert trained.keys() == start.keys() and any((trained[k] != start[k]).any() for k in start)
    assert (run.out / "hf" / "config.json").read_text().count('"dtype": "float32"') == 1
    assert list((run.out / "tensorboard").glob("events*"))
    assert "already finished" in finish(run.start(), 0)


def test_dapo_trains_mixed_groups_and_goes_on_after_kill_9(
    model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path
) -> None:
    more = ["--algo", "dapo", "--steps", "5", "--save-every", "2"]
    run = OurRun(model_dir, rows_file, tool_server.url, tmp_path / "run", *more)
    process = run.start()
    until(lambda: len(run.steps()) >= 3, 3 * PATIENCE_S)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(family, timeout=30)[1] == [], "something outlived its launcher"

    said = finish(run.start(), 0)
    assert "going on from step" in said
    metrics = run.steps()
    assert [m["step"] for m in metrics] == [1, 2, 3, 4, 5]
    by_group: dict[str, list[Trace]] = {}
    for trace in traces(run.out):
        by_group.setdefault(trace.extra["group"], []).append(trace)
    for line in metrics:
        new = [g for g in by_group.values() if g[0].step == line["step"]]
        mixed = [g for g in new if len({t.score["em"] for t in g}) == 2]
        assert line["scout/groups_generated"] == len(new)
        assert line["scout/groups_evicted"] == len(new) - len(mixed)
        assert line["scout/groups_carried_in"] + len(mixed) == 4 + line["scout/groups_carried_out"]
        assert line["scout/zero_variance_group_share"] == 0
        assert line["scout/age_steps_max"] <= 1
    carried = [m["scout/groups_carried_out"] for m in metrics]
    assert [m["scout/groups_carried_in"] for m in metrics] == [0, *carried[:-1]]  # also over the kill
    for line in metrics:
        ratio = line["actor/ppo_kl"]
        assert (abs(ratio) > 1e-6) == (line["scout/age_steps_max"] > 0), "a carried group's ratio is not 1"


def test_a_killed_tool_server_pauses_the_run_which_goes_on_when_it_is_back(
    model_dir: Path, rows_file: Path, tool: Tool, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{tool.port}"
    more = ["--steps", "5", "--save-every", "50"]
    run = OurRun(model_dir, rows_file, url, tmp_path / "run", *more)
    process = run.start()
    until(lambda: len(run.steps()) >= 2, 3 * PATIENCE_S)
    tool.kill()
    said = finish(process, 3)
    last = run.steps()[-1]["step"]
    assert "more than 5%" in said and "connection:" in said and f"step {last} is saved" in said
    assert (run.out / "ckpt" / f"global_step_{last}" / "data.pt").is_file()

    tool.start()
    said = finish(run.start(), 0)
    assert f"going on from step {last}" in said
    assert [m["step"] for m in run.steps()] == [1, 2, 3, 4, 5]
    run.trained_only_what_was_scored()


def test_a_run_with_patience_outlives_a_restart(
    model_dir: Path, rows_file: Path, tool: Tool, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{tool.port}"
    more = ["--steps", "4", "--set", "scout.tools.outage_patience_s=120"]
    run = OurRun(model_dir, rows_file, url, tmp_path / "run", *more)
    process = run.start()
    until(lambda: len(run.steps()) >= 1, 3 * PATIENCE_S)
    tool.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)  # the outage itself
    tool.start()
    finish(process, 0)
    assert [m["scout/infra_errors"] for m in run.steps()] == [0] * 4
    run.trained_only_what_was_scored()


def test_a_killed_worker_ends_the_run_and_not_by_hanging(
    model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path
) -> None:
    more = ["--steps", "50", "--save-every", "1", "--stall-timeout-s", "60"]
    run = OurRun(model_dir, rows_file, tool_server.url, tmp_path / "run", *more)
    process = run.start()
    until(lambda: len(run.steps()) >= 1, 3 * PATIENCE_S)
    workers = [
        p
        for p in psutil.Process(process.pid).children(recursive=True)
        if "WorkerDict" in " ".join(p.cmdline())
    ]
    assert workers
    for p in workers:
        p.kill()
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (1, 4), said
    assert "scout train:" in said
