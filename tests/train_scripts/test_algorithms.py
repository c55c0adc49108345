"""Every algorithm, and every word that changes how one trains, takes a step on a CPU, by the real verl."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scout_train.compose import names

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1300)]  # a minute each on an idle machine
SMALL = (
    "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.rollout.n=4",
)


def train(model: Path, rows: Path, url: str, out: Path, *words: str) -> list[dict[str, Any]]:
    """One step of training, and what it logged."""
    options = ["--model", model, "--train", rows, "--tools", url, "--out", out, "--cluster", "cpu"]
    settings = [x for s in SMALL for x in ("--set", s)]
    argv = [sys.executable, "-m", "scout_train.launch", *map(str, options), *settings, "--steps", "1"]
    # an untrained model hardly ever has a group that differs in outcome
    argv += ["--stall-timeout-s", "0", "--set", "algorithm.filter_groups.max_num_gen_batches=100", *words]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=1200, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("algo", names("algo"))
def test_a_step(algo: str, model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path) -> None:
    (step,) = train(model_dir, rows_file, tool_server.url, tmp_path / "run", "--algo", algo)
    assert step["scout/trained_trajectories"] == 16
    assert math.isfinite(step["actor/pg_loss"]) and math.isfinite(step["actor/grad_norm"])
    assert step["actor/grad_norm"] > 0
    if algo == "ppo":
        assert step["critic/vf_loss"] > 0 and math.isfinite(step["critic/grad_norm"])
        assert (tmp_path / "run" / "ckpt" / "global_step_1" / "critic").is_dir()
    else:
        assert "critic/vf_loss" not in step
    if algo.startswith("dapo"):
        assert step["scout/zero_variance_group_share"] == 0.0


def test_words_have_their_effect(model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path) -> None:
    """KL in the loss, credit by turns, and W&B, which without a key writes into the run's folder."""
    out = tmp_path / "run"
    (step,) = train(
        model_dir, rows_file, tool_server.url, out, "--algo", "dapo", "--with", "kl", "gigpo", "wandb"
    )
    assert step["actor/kl_coef"] == 0.001 and step["actor/kl_loss"] >= 0
    assert step["actor/grad_norm"] > 0
    assert list((out / "wandb").glob("offline-run-*/run-*.wandb"))


def test_kl_in_the_reward(model_dir: Path, rows_file: Path, tool_server: Any, tmp_path: Path) -> None:
    words = ("--algo", "ppo", "--with", "kl_in_reward")
    (step,) = train(model_dir, rows_file, tool_server.url, tmp_path / "run", *words)
    assert step["actor/reward_kl_penalty_coeff"] == 0.001
