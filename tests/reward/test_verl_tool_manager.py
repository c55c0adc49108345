"""verl-tool's reward manager: what it may not read, outages, and the leak of the one that it replaces."""

from __future__ import annotations

import ast
import os
import random
import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("verl", reason="verl is not installed")

import numpy as np  # noqa: E402

from scout_protocol.prompt import load_prompt  # noqa: E402

REPO = Path(__file__).resolve().parents[2]
LEAKING = REPO / "verl-tool" / "verl_tool" / "workers" / "reward_manager" / "search_r1_qa_em.py"
SEARCH, LEAK = "<search>q</search>", "<information><answer>Beijing</answer></information>"


class Tokenizer:
    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(int(i)) for i in ids)


def call(action: str, obs: str, **more: Any) -> dict[str, Any]:
    return {"action": action, "obs": obs, "success": True, "valid_action": 1, **more}


def recorded(calls: list[dict[str, Any]], last: str = "") -> tuple[str, dict[str, Any]]:
    """A response and the fields that verl-tool's agent loop hands on with it."""
    response = "".join(c["action"] + c["obs"] for c in calls) + last
    metrics = {
        "num_turns": len(calls) + bool(last),
        "generated_length": len(last or (calls[-1]["action"] if calls else "")),
        "traj_actions_length": sum(len(c["action"]) for c in calls) + len(last),
    }
    return response, {"tool_interact_info": calls, "verl_tool_metrics": metrics}


def batch(rows: list[tuple[str, dict[str, Any]]], mask: list[list[int]] | None = None, **meta: Any) -> Any:
    from verl import DataProto

    width = max(len(text) for text, _ in rows) + 2
    prompt = "<answer> Beijing </answer>"
    tensors = {
        "prompts": torch.tensor([[ord(c) for c in prompt]] * len(rows)),
        "responses": torch.tensor([[*map(ord, t), *[0] * (width - len(t))] for t, _ in rows]),
        "attention_mask": torch.tensor(
            [[1] * (len(prompt) + len(t)) + [0] * (width - len(t)) for t, _ in rows]
        ),
    }
    if mask is not None:
        tensors["response_mask"] = torch.tensor([[*m, *[0] * (width - len(m))] for m in mask])
    fields: dict[str, Any] = {"reward_model": [{"ground_truth": {"target": ["Beijing"]}}] * len(rows)}
    for key in {key for _, extra in rows for key in extra}:
        fields[key] = [extra.get(key) for _, extra in rows]
    arrays = {}
    for key, values in fields.items():
        arrays[key] = np.empty(len(rows), dtype=object)
        arrays[key][:] = values
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays, meta_info=meta)


def rewards(data: Any, **settings: Any) -> list[float]:
    from scout_reward.verl_tool_manager import VerlToolRewardManager

    found: list[float] = VerlToolRewardManager(Tokenizer(), num_examine=1, **settings)(data).sum(-1).tolist()
    return found


def test_the_reward_stands_on_the_last_token_of_the_response() -> None:
    from scout_reward.verl_tool_manager import VerlToolRewardManager

    texts = [recorded([call(SEARCH, LEAK)], "<answer>Beijing</answer>"), recorded([], "Hm.")]
    tensor = VerlToolRewardManager(Tokenizer())(batch(texts))
    assert tensor.dtype == torch.float32
    assert tensor.nonzero().tolist() == [[0, len(texts[0][0]) - 1]]
    assert tensor.max() == 1.0


@pytest.mark.parametrize(
    ("calls", "last", "reward"),
    [
        ([call(SEARCH, LEAK)], "", 0.0),  # the answer stands on the page
        ([call(SEARCH, LEAK)], "Hm.", 0.0),
        ([call(SEARCH, LEAK)], "<answer>Beijing</answer>", 1.0),
        (
            [call(SEARCH, LEAK), call("<answer>Beijing</answer>", "")],
            "",
            1.0,
        ),  # the answer was sent to the tool
        ([call(SEARCH, LEAK), call("<answer>Lyon</answer>", LEAK)], "", 0.1),
        ([], "I do not know.", 0.0),  # the example in the prompt
        ([call("<answer>Beijing", "</answer>")], "", 0.0),
    ],
)
def test_only_the_policys_turns_are_read(calls: list[dict[str, Any]], last: str, reward: float) -> None:
    assert rewards(batch([recorded(calls, last)])) == pytest.approx([reward])


def test_the_mask_is_not_believed_where_the_calls_are_known() -> None:
    text, fields = recorded([call(SEARCH, LEAK)], "Hm.")
    assert rewards(batch([(text, fields)], mask=[[1] * len(text)])) == [0.0]  # mask_observations=False
    text, fields = recorded([call(SEARCH, LEAK)], "<answer>Beijing</answer>")
    assert rewards(batch([(text, fields)], mask=[[0] * len(text)])) == [1.0]  # mask_overlong_loss=True


def test_the_mask_is_read_where_nothing_else_is_known() -> None:
    text = SEARCH + LEAK + "<answer>Lyon</answer>"
    mask = [1] * len(SEARCH) + [0] * len(LEAK) + [1] * len("<answer>Lyon</answer>")
    assert rewards(batch([(text, {})], mask=[mask])) == pytest.approx([0.1])
    with pytest.raises(ValueError, match="who wrote what"):
        rewards(batch([(text, {})]))


def test_a_truncated_observation_moves_nothing() -> None:
    """The loop cuts observations by tokens; the fields still hold the turns."""
    text, fields = recorded([call(SEARCH, LEAK * 40)], "<answer>Beijing</answer>")
    cut = SEARCH + LEAK[:20] + "...(truncated)" + "<answer>Beijing</answer>"
    assert rewards(batch([(cut, fields)])) == [1.0]
    assert len(text) > len(cut)


def test_policy_tokens_are_counted_and_never_the_pages() -> None:
    kwargs = {"overlong_penalty": 0.5, "overlong_max_tokens": 100, "overlong_buffer_tokens": 20}
    short = recorded([call(SEARCH, LEAK * 100)], "<answer>Beijing</answer>")
    long = recorded([call("x" * 100 + SEARCH, LEAK)], "<answer>Beijing</answer>")
    assert rewards(batch([short, long]), **kwargs) == pytest.approx([1.0, 0.5])


@pytest.mark.parametrize("how", [{"success": False}, {"infra_error": 1.0}])
def test_an_outage_gets_the_mean_of_its_group(how: dict[str, Any]) -> None:
    """No manager can leave a trajectory out there; at the mean its advantage is 0 and the mean stays."""
    from scout_reward.verl_tool_manager import VerlToolRewardManager

    manager = VerlToolRewardManager(Tokenizer())
    right = recorded([call(SEARCH, LEAK)], "<answer>Beijing</answer>")
    wrong = recorded([call(SEARCH, LEAK)], "<answer>Lyon</answer>")
    lost = recorded([call(SEARCH, "The tool is unavailable.", **how)], "<answer>Beijing</answer>")
    rows = [right, wrong, lost, lost]
    first = manager(batch(rows), return_dict=True)
    assert first["reward_extra_info"]["no_reward"] == [0.0, 0.0, 1.0, 1.0]
    assert first["reward_tensor"].sum(-1).tolist() == pytest.approx([1.0, 0.1, 0.0, 0.0])
    assert all(first["reward_extra_info"][key][2] == 0.0 for key in ("score", "acc", "em", "f1"))

    # the trainer asks again, with the whole batch and the rewards that were given
    data = batch(rows, reward_extra_keys=["no_reward", "acc"])
    data.batch["rm_scores"] = first["reward_tensor"]
    data.non_tensor_batch.update(
        uid=np.array(["a", "a", "a", "b"], dtype=object),
        no_reward=np.array(first["reward_extra_info"]["no_reward"]),
        acc=np.array(first["reward_extra_info"]["acc"]),
    )
    again = manager(data, return_dict=True)
    assert again["reward_tensor"].sum(-1).tolist() == pytest.approx([1.0, 0.1, 0.55, 0.0])  # b is lost whole
    assert first["reward_tensor"].sum(-1).tolist()[2] == 0.0  # nothing is changed in place
    assert list(again["reward_extra_info"]["acc"]) == [1.0, 0.0, 0.0, 0.0]


def test_verl_finds_it_by_name_after_the_import_that_the_recipe_asks_for() -> None:
    code = (
        "import verl; from verl.workers.reward_manager import get_reward_manager_cls as get;"
        "print(get('scout_search').__module__)"
    )
    env = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "scout_reward.verl_tool_manager",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "scout_reward.verl_tool_manager"


@pytest.mark.skipif(
    not LEAKING.is_file(), reason="verl-tool/ is empty: git submodule update --init verl-tool"
)
def test_verl_tool_itself_finds_it_beside_its_own() -> None:
    """verl-tool's registry on its vendored verl 0.7.0.dev, in a process of its own."""
    code = (
        "import verl; from verl_tool.workers.reward_manager import get_reward_manager_cls as get;"
        "print(verl.__version__, get('scout_search').__module__)"
    )
    path = [str(REPO / "verl-tool" / "verl"), str(REPO / "verl-tool"), *sys.path]
    env = os.environ | {
        "VERL_USE_EXTERNAL_MODULES": "scout_reward.verl_tool_manager",
        "PYTHONPATH": os.pathsep.join(path),
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0.7.0.dev scout_reward.verl_tool_manager"


def leaking_score() -> Any:
    """``compute_score`` of the manager that verl-tool ships, lifted out of its file."""
    wanted = {"normalize_answer", "em_check", "extract_solution", "count_answer_tags", "compute_score"}
    body = [
        node
        for node in ast.parse(LEAKING.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name in wanted
    ]
    space: dict[str, Any] = {"re": re, "random": random, "string": string}
    exec(compile(ast.Module(body, []), str(LEAKING), "exec"), space)
    return space["compute_score"]


needs_submodule = pytest.mark.skipif(
    not LEAKING.is_file(), reason="verl-tool/ is empty: git submodule update --init verl-tool"
)


@needs_submodule
def test_the_manager_that_this_one_replaces_leaks() -> None:
    prompt = load_prompt("search_r1").build("What is the capital of China?")[0]["content"]
    silent = leaking_score()(prompt + "I do not know.", {"target": ["Beijing"]}, format_score=0.1)
    page = leaking_score()(SEARCH + LEAK, {"target": ["Beijing"]}, format_score=0.1)
    assert (silent, page) == (1.0, 1.0)
    assert rewards(batch([recorded([], "I do not know."), recorded([call(SEARCH, LEAK)])])) == [0.0, 0.0]


@needs_submodule
@pytest.mark.parametrize("tags", [1, 2, 10, 11, 30])
def test_the_mode_search_r1_counts_as_the_original(tags: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = "<answer>no</answer>" * (tags - 1) + "<answer>Beijing</answer>"
    original = leaking_score()(text, {"target": ["Beijing"]}, format_score=0.1)
    assert rewards(batch([recorded([], text)]), answer_tags="search_r1") == [original]
