"""verl-tool's own agent loop as this project runs it: scripted turns, a real tool server, its environment."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from verl_tool_place import needs_engine

pytestmark = needs_engine

SEARCH = "<think>search</think><search>Peru</search>"
LONG = "<think>search</think><search>everything</search>"
RIGHT = "<answer>Lima</answer>"


@pytest.fixture
def probe(model_dir: Path, tool_server: Any, tmp_path: Path) -> Any:
    """``probe(scenario, …)`` → what came out of each."""
    from omegaconf import OmegaConf

    from scout_train.compose import Choice, compose
    from scout_train.verl_tool import keys, paths, start

    config = compose(Choice("grpo", engine="verl_tool"))
    config.scout.tools.url = tool_server.url
    config.actor_rollout_ref.model.path = str(model_dir)
    config.scout.run.dir, config.scout.run.stage, config.scout.run.model = str(tmp_path), "s", "m"
    keys.settle(config)
    OmegaConf.save(config, tmp_path / "config.yaml", resolve=True)
    start.model_for_transformers_4(model_dir, tmp_path / "model")
    here = Path(__file__).with_name("verl_tool_probe.py")
    argv = [str(paths.python()), str(here), str(tmp_path / "config.yaml"), str(tmp_path / "model")]

    def run(*scenarios: dict[str, Any]) -> list[dict[str, Any]]:
        env = start.environment(dict(os.environ), str(tmp_path))
        done = subprocess.run(
            argv, input=json.dumps(scenarios), capture_output=True, text=True, timeout=500, env=env
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return [
            json.loads(x.removeprefix("PROBE")) for x in done.stdout.splitlines() if x.startswith("PROBE")
        ]

    return run


def test_whole_trajectories(probe: Any, tool_server: Any) -> None:
    masked = {"scout.reward.overlong_mask": True}
    dead = {"scout.tools.url": "http://127.0.0.1:9"}
    found = probe(
        {"turns": [SEARCH, RIGHT]},
        {"turns": [SEARCH + "\n\nnot mine", RIGHT + " nor this"]},
        {"turns": [SEARCH, SEARCH, SEARCH, RIGHT], "set": masked},
        {"turns": ["<think>" + "a long thought " * 200], "set": masked},
        {"turns": [SEARCH], "set": dead},
        {"turns": [RIGHT], "set": dead},
        {"turns": [SEARCH, SEARCH, SEARCH, SEARCH]},
        {"turns": ["nothing<|im_end|>"]},
        {"turns": [LONG, RIGHT], "set": {"scout.episode.max_obs_tokens": 100}},
        {"turns": [SEARCH, SEARCH, SEARCH, RIGHT], "set": {"scout.episode.force_answer": True}},
        {"turns": [SEARCH, SEARCH, RIGHT], "set": {"scout.episode.max_same_searches": 1}},
        {"turns": [SEARCH], "set": {"scout.episode.turn_timeout_s": 0.1}, "delay_s": 1.0},
        {"turns": [SEARCH, RIGHT], "set": {"scout.episode.trajectory_timeout_s": 0.5}, "delay_s": 0.3},
    )
    (
        plain,
        late,
        last_turn,
        cut,
        outage,
        answered,
        searched,
        gave_up,
        short,
        forced,
        repeated,
        slow,
        dead_line,
    ) = found

    stops = [f["trace"]["stop_reason"] for f in found]
    assert stops == [
        *("answer", "answer", "answer", "length", "infra_error", "answer", "max_turns", "eos"),
        *("answer", "answer", "answer", "turn_timeout", "trajectory_timeout"),
    ]
    assert (plain["reward"], plain["lost"], plain["parts"]["acc"]) == (1.0, "", 1.0)
    for (
        f
    ) in found:  # what is trained is what the policy wrote, and nothing that it read has a log-probability
        own = "".join(s["text"] for s in f["trace"]["spans"] if s["author"] == "policy")
        assert f["lost"] or "masked" in f["trace"]["extra"] or f["trained"] == own
        assert all(x == 0 for x, m in zip(f["logprobs"], f["mask"], strict=True) if not m) or not f["trained"]
        assert (f["trace"]["extra"]["group"], f["trace"]["extra"]["member"], f["trace"]["step"]) == (
            "g",
            3,
            7,
        )
    assert plain["trained"] == SEARCH + RIGHT and "capital of Peru is Lima" in plain["given"]

    # nothing after a stop string
    assert late["trained"] == SEARCH + RIGHT and late["trace"]["extra"]["tokens_after_stop"] > 0

    # an answer on the last allowed turn is whole: verl-tool's mask_overlong_loss zeroes exactly this
    assert last_turn["trained"].endswith(RIGHT) and last_turn["reward"] == 1.0
    assert cut["trained"] == "" and cut["trace"]["extra"]["masked"] and cut["lost"] == ""

    # an outage leaves; an answer needs no server
    assert (
        outage["lost"].startswith("connection:")
        and outage["trained"] == ""
        and outage["trace"]["score"] == {}
    )
    assert answered["lost"] == "" and answered["reward"] == 1.0
    assert outage["parts"].keys() == plain["parts"].keys()

    assert searched["reward"] == gave_up["reward"] == 0.0
    assert searched["trace"]["n_searches"] == 4 - 1  # the fourth is not executed
    assert "…(truncated)" in short["given"] and short["given"].endswith("</information>\n\n")
    assert 50 < short["trace"]["n_tool_tokens"] <= 100
    assert "last turn" in forced["given"] and forced["trace"]["extra"]["forced_answer"]
    assert "made before" in repeated["given"] and repeated["trace"]["extra"]["cut_searches"] == 1

    # deadlines: the part that was played is trained with the fallback reward, without a turn it is lost
    assert slow["lost"] == "turn_timeout before the first turn" and slow["tokens"] == 1
    assert dead_line["lost"] == "" and dead_line["trained"] == SEARCH and dead_line["reward"] == 0.0


def test_the_model_is_the_same_function_in_both_environments(probe: Any, model_dir: Path) -> None:
    """Positions above all: the rotary base has another name in transformers 4."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = "<search>What is the capital of Peru?</search>\n\n"
    ids = AutoTokenizer.from_pretrained(model_dir).encode(text)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    long = (ids * 20)[:300]
    with torch.no_grad():
        ours = model(torch.tensor([long])).logits[0, -1]
    (found,) = probe({"logits_of": long, "text": text})
    assert found["ids"] == ids
    assert torch.allclose(torch.tensor(found["logits"]), ours, atol=1e-4)
