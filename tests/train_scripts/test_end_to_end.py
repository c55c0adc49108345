"""The whole of `scout train` with Ray and verl: two GRPO steps; and, slowly, a run killed with kill -9."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import yaml

from scout_protocol.records import Author, Trace

SMALL = [
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
]


def command(model_dir: Path, rows_file: Path, url: str, out: Path, *more: str) -> list[str]:
    options = ["--model", model_dir, "--train", rows_file, "--tools", url, "--out", out]
    settings = [x for s in SMALL for x in ("--set", s)]
    return [sys.executable, "-m", "scout_train.launch", *map(str, options), *settings, *more]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def descendants() -> set[int]:
    return {p.pid for p in psutil.Process().children(recursive=True)}


def test_two_steps_of_grpo(model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    before = descendants()
    # with the second log-prob pass, so that verl itself compares sampling and training probabilities
    more = ["--steps", "2", "--set", "algorithm.rollout_correction.bypass_mode=false"]
    more += ["--set", "scout.reward.step_penalty=0.02"]
    argv = command(model_dir, rows_file, tool_server.url, out, *more)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=900, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert descendants() <= before
    assert "hack risk of step_penalty=0.02" in done.stderr

    metrics = read(out / "metrics.jsonl")
    assert [m["step"] for m in metrics] == [1, 2]
    for line in metrics:
        assert line["scout/trained_trajectories"] == line["scout/trajectories"] == 16
        assert line["training/rollout_probs_diff_max"] < 1e-3
        assert line["actor/grad_norm"] >= 0 and 0 <= line["scout/zero_variance_group_share"] <= 1
        assert sum(v for k, v in line.items() if k.startswith("scout/stop/")) == pytest.approx(1)
    assert sum(m["actor/grad_norm"] for m in metrics) > 0

    traces = [
        msgspec.json.decode(line, type=Trace) for line in (out / "traces.jsonl").read_bytes().splitlines()
    ]
    assert Counter(t.step for t in traces) == {1: 16, 2: 16}
    assert all(
        len({t.extra["member"] for t in traces if t.extra["group"] == g}) == 4
        for g in {t.extra["group"] for t in traces}
    )
    for trace in traces:
        own = [s for s in trace.spans if s.author is Author.POLICY]
        assert all(
            s.logprobs is not None and s.token_ids is not None and len(s.logprobs) == len(s.token_ids)
            for s in own
        )
    assert any(t.n_searches for t in traces)
    for t in traces:
        tier = (1.0 if t.score["em"] else 0.1 * t.score["format"]) / max(1, t.score["n_answers"])
        assert t.score["shaping"] == {"steps": pytest.approx(-0.02 * t.score["n_searches"])}
        assert t.score["total"] == pytest.approx(tier - 0.02 * t.score["n_searches"])
    for line in metrics:
        of_step = [t.score for t in traces if t.step == line["step"]]
        mean = sum(s["total"] for s in of_step) / 16
        assert line["critic/score/mean"] == pytest.approx(mean, abs=1e-5) == line["scout/reward"]
        assert line["scout/shaping/steps"] == pytest.approx(sum(s["shaping"]["steps"] for s in of_step) / 16)

    from transformers import AutoModelForCausalLM

    trained, start = (AutoModelForCausalLM.from_pretrained(p).state_dict() for p in (out / "hf", model_dir))
    assert any((trained[k] != start[k]).any() for k in start)
    assert list((out / "tensorboard").glob("events*"))

    # the evaluation is told what the run was told
    evaluated = tmp_path / "eval"
    words = ["--rows", rows_file, "--policy", f"hf:{out / 'hf'}", "--tools", tool_server.url, "--limit", "5"]
    words += ["--out", evaluated, "--like", out, "--max-model-len", "1024", "--threads", "1"]
    argv_eval = [sys.executable, "-m", "scout_cli.main", "eval", "run", *map(str, words)]
    judged = subprocess.run(argv_eval, capture_output=True, text=True, timeout=3000, env=environment())
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert "reward: defaults, but step_penalty 0.02" in judged.stdout
    asked = json.loads((evaluated / "run.json").read_text())
    config = yaml.safe_load((out / "config.yaml").read_text())
    # the lengths of the size, which cost nothing without a penalty
    overlong = {"overlong_max_tokens": 256, "overlong_buffer_tokens": 64}
    assert asked["reward"] == {"step_penalty": 0.02} | overlong
    assert asked["settings"]["max_turn_tokens"] == config["scout"]["episode"]["max_turn_tokens"]
    assert asked["settings"]["max_response_tokens"] == config["data"]["max_response_length"]
    for line in read(evaluated / "traces.jsonl"):
        assert line["score"]["shaping"] == {"steps": pytest.approx(-0.02 * line["score"]["n_searches"])}

    again = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=environment())
    assert again.returncode == 0 and "already finished" in again.stdout
    assert read(out / "metrics.jsonl") == metrics


@pytest.mark.slow
def test_a_run_killed_with_kill_9_ends_with_the_same_lines(
    model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    argv = command(model_dir, rows_file, tool_server.url, out, "--steps", "6", "--save-every", "2")
    process = subprocess.Popen(argv, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and not (out / "metrics.jsonl").exists():
        time.sleep(0.05)
    while time.monotonic() < deadline and len(read(out / "metrics.jsonl")) < 3:
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(family, timeout=20)[1] == [], "something outlived its launcher"

    done = subprocess.run(argv, capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "going on from step 2" in done.stdout
    assert [m["step"] for m in read(out / "metrics.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert Counter(t["step"] for t in read(out / "traces.jsonl")) == dict.fromkeys(range(1, 7), 16)
    assert sorted(p.name for p in (out / "ckpt").glob("global_step_*")) == ["global_step_4", "global_step_6"]


@pytest.mark.slow
def test_a_tool_server_that_dies_ends_the_run_with_the_reason(
    model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    argv = command(model_dir, rows_file, tool_server.url, out, "--steps", "50", "--save-every", "50")
    process = subprocess.Popen(argv, env=environment(), stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and not (
        (out / "metrics.jsonl").exists() and read(out / "metrics.jsonl")
    ):
        time.sleep(0.05)
    tool_server.broken = True
    _, said = process.communicate(timeout=120)
    assert process.returncode == 3 and "is the tool server up?" in said
    # the weights of the last whole step were saved, so nothing is lost
    last = read(out / "metrics.jsonl")[-1]["step"]
    assert (out / "ckpt" / f"global_step_{last}" / "data.pt").is_file()
