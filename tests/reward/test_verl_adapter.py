"""The adapter through verl 0.9.1's own reward manager: what verl decodes is never what is scored."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import numpy as np
import pytest

from scout_reward.score import score
from scout_reward.settings import RewardSettings
from scout_reward.verl_adapter import compute_score

TEXTS = ["<search>q</search>", "<answer>Paris</answer>"]
TRUTH = {"target": ["Paris"]}


def test_scores_the_policy_texts_and_not_the_decoded_response() -> None:
    leak = "<information><answer>Paris</answer></information>"
    found = compute_score("nq", leak, TRUTH, {"policy_texts": ["<search>q</search>", "Hm."]})
    assert found["score"] == 0.0
    found = compute_score("nq", "nothing here", TRUTH, {"policy_texts": TEXTS, "other": 1})
    assert (found["score"], found["acc"]) == (1.0, 1.0)


def test_equals_the_plain_score_with_settings() -> None:
    wrong = ["<answer>Lyon</answer>"]
    found = compute_score("nq", "", TRUTH, {"policy_texts": wrong}, format_score=0.2)
    assert found["score"] == score(wrong, ["Paris"], settings=RewardSettings(format_score=0.2)).total == 0.2
    assert all(isinstance(value, float) for value in found.values())


def test_numpy_arrays_as_parquet_readers_hand_them_out() -> None:
    truth = {"target": np.array(["Paris", "Paname"], dtype=object)}
    assert compute_score("nq", "", truth, {"policy_texts": np.array(TEXTS, dtype=object)})["score"] == 1.0


@pytest.mark.parametrize(
    ("truth", "extra", "field"),
    [
        (TRUTH, None, "policy_texts"),
        (TRUTH, {}, "policy_texts"),
        (TRUTH, {"policy_texts": None}, "policy_texts"),
        (TRUTH, {"policy_texts": "<answer>Paris</answer>"}, "policy_texts"),
        (TRUTH, {"policy_texts": [1]}, "policy_texts"),
        ("Paris", {"policy_texts": TEXTS}, "ground_truth"),
        ({}, {"policy_texts": TEXTS}, "ground_truth"),
        ({"target": "Paris"}, {"policy_texts": TEXTS}, "ground_truth.target"),
        ({"target": []}, {"policy_texts": TEXTS}, "ground_truth.target"),
        (TRUTH, {"policy_texts": TEXTS, "infra_failed": True}, "infra_failed"),
    ],
)
def test_refuses_loudly_and_the_error_survives_pickling(truth: Any, extra: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field) as caught:
        compute_score("nq", "<answer>Paris</answer>", truth, extra)
    assert field in str(pickle.loads(pickle.dumps(caught.value)))  # Ray sends errors between processes


class Tokenizer:
    """verl decodes the response with the model's tokenizer; here every id is a character."""

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(int(i)) for i in ids)


@pytest.mark.parametrize(("last", "expected"), [("<answer>Paris</answer>", 1.0), ("I give up.", 0.0)])
def test_inside_verls_reward_manager(last: str, expected: float) -> None:
    pytest.importorskip("verl", reason="verl is not installed")
    torch = pytest.importorskip("torch")
    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn

    config = OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {
                    "path": "pkg://scout_reward.verl_adapter",
                    "name": "compute_score",
                    "reward_kwargs": {"format_score": 0.1},
                }
            }
        }
    )
    tool = "<information><answer>Paris</answer></information>"
    response = torch.tensor([[ord(c) for c in "<search>q</search>" + tool + last]])
    data = DataProto.from_dict(
        tensors={"responses": response, "attention_mask": torch.ones_like(response)},
        non_tensors={
            "data_source": np.array(["nq"], dtype=object),
            "reward_model": np.array([{"ground_truth": TRUTH}], dtype=object),
            "extra_info": np.array([{"index": 0}], dtype=object),
            "tool_extra_fields": np.array([{"policy_texts": ["<search>q</search>", last]}], dtype=object),
        },
    )

    async def run() -> dict[str, Any]:
        manager = NaiveRewardManager(config, Tokenizer(), get_custom_reward_fn(config))
        manager.loop = asyncio.get_running_loop()
        result: dict[str, Any] = await manager.run_single(data)
        return result

    result = asyncio.run(run())
    assert result["reward_score"] == expected
    assert result["reward_extra_info"]["acc"] == expected
