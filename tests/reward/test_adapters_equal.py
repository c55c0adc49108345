"""Plain Python, verl's function and managers, verl-tool's manager, HTTP: one trajectory, one number."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scout_protocol.records import Author, Span
from scout_reward.reading import read_mask, read_spans
from scout_reward.score import score
from scout_reward.settings import RewardSettings
from scout_reward.verl_adapter import compute_score, compute_score_http, extra_fields

torch = pytest.importorskip("torch")
pytest.importorskip("verl", reason="verl is not installed")

SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "shaped": {
        "outcome": "f1",
        "normaliser": "folded",
        "answer_tags": "search_r1",
        "format_score": 0.2,
        "step_penalty": 0.02,
        "quadratic_step_penalty": 0.001,
        "duplicate_query_penalty": 0.05,
        "overlong_penalty": 0.1,
        "overlong_max_tokens": 400,
        "overlong_buffer_tokens": 300,
        "no_search_penalty": 0.05,
        "no_evidence_penalty": 0.05,
    },
}
Reward = dict[str, float]


class Tokenizer:
    """Every id is a character, as in the cases."""

    def decode(self, ids: Any, skip_special_tokens: bool = False) -> str:
        return "".join(chr(int(i)) for i in ids)


def tokens(spans: list[Span]) -> tuple[list[int], list[int]]:
    ids = [i for span in spans for i in span.token_ids or []]
    mask = [int(span.author is Author.POLICY) for span in spans for _ in span.token_ids or []]
    return ids, mask


def data_proto(rows: list[tuple[list[int], dict[str, Any], list[str]]], **meta: Any) -> Any:
    """A batch as the agent loops make it: padded responses, no loss mask, other fields beside it."""
    from verl import DataProto

    width = max(len(ids) for ids, _, _ in rows) + 3
    prompt = "For example, <answer> Beijing </answer>."
    responses = torch.tensor([[*ids, *[0] * (width - len(ids))] for ids, _, _ in rows])
    attention = torch.tensor(
        [[1] * (len(prompt) + len(ids)) + [0] * (width - len(ids)) for ids, _, _ in rows]
    )
    prompts = torch.tensor([[ord(c) for c in prompt]] * len(rows))
    fields: dict[str, Any] = {
        "data_source": ["nq"] * len(rows),
        "reward_model": [{"ground_truth": {"target": golden}} for _, _, golden in rows],
        "extra_info": [{"index": 0} for _ in rows],
    }
    for key in {key for _, extra, _ in rows for key in extra}:
        fields[key] = [extra.get(key) for _, extra, _ in rows]
    arrays = {}
    for key, values in fields.items():
        arrays[key] = np.empty(len(rows), dtype=object)
        arrays[key][:] = values
    return DataProto.from_dict(
        tensors={"prompts": prompts, "responses": responses, "attention_mask": attention},
        non_tensors=arrays,
        meta_info=meta,
    )


def config(settings: dict[str, Any], function: str = "compute_score", **more: Any) -> Any:
    from omegaconf import OmegaConf

    custom = {"path": "pkg://scout_reward.verl_adapter", "name": function, "reward_kwargs": more or settings}
    return OmegaConf.create(
        {
            "reward": {
                "num_workers": 1,
                "reward_kwargs": settings,
                "custom_reward_function": custom,
                "reward_manager": {
                    "source": "importlib",
                    "name": "ScoutRewardManager",
                    "module": {"path": "pkg://scout_reward.verl_reward_loop"},
                },
            }
        }
    )


def through(
    manager_of: Callable[[], Any], spans: list[Span], golden: list[str], extra: dict[str, Any]
) -> Reward:
    async def run() -> Reward:
        manager = manager_of()
        manager.loop = asyncio.get_running_loop()
        ids, _ = tokens(spans)
        result = await manager.run_single(data_proto([(ids, {"tool_extra_fields": extra}, golden)]))
        assert result["reward_score"] == result["reward_extra_info"]["score"]
        found: Reward = result["reward_extra_info"]
        return found

    return asyncio.run(run())


def verl_tool_fields(spans: list[Span]) -> dict[str, Any]:
    """What verl-tool's agent loop says of a trajectory: one entry a call, then perhaps a turn without one."""
    calls: list[dict[str, Any]] = []
    turns = [span for span in spans if span.author is Author.POLICY]
    for i, span in enumerate(spans):
        if span.author is Author.TOOL:
            calls.append({"action": spans[i - 1].text, "obs": span.text, "success": True, "valid_action": 1})
    metrics = {
        "num_turns": len(turns),
        "generated_length": len(turns[-1].token_ids or []) if turns else 0,
        "traj_actions_length": sum(len(span.token_ids or []) for span in turns),
    }
    return {"tool_interact_info": calls, "verl_tool_metrics": metrics, "traj_stop_reason": "x"}


@pytest.mark.parametrize("name", SETTINGS)
def test_every_way_gives_the_same_numbers(name: str, cases: Any, service: Callable[..., str]) -> None:
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn, load_reward_manager

    from scout_reward.verl_tool_manager import VerlToolRewardManager

    kwargs = SETTINGS[name]
    settings = RewardSettings(**kwargs)
    assert len({case.name for case in cases}) >= 19

    plain: list[Reward] = []
    for case in cases:
        reading = read_spans(case.spans)
        found = score(reading, case.golden, settings=settings)
        plain.append({"score": found.total, **found.as_metrics()})
        # by mask
        assert (
            score(read_mask(*tokens(case.spans), Tokenizer().decode), case.golden, settings=settings) == found
        )
        # verl's custom reward function; the decoded response is not read
        info = extra_fields(reading)
        assert (
            compute_score("nq", "<answer>leak</answer>", {"target": case.golden}, info, **kwargs) == plain[-1]
        )

    # verl's own manager around that function, and our manager, by texts and by mask
    cfg = config(kwargs)
    tokenizer = Tokenizer()
    naive = NaiveRewardManager(cfg, tokenizer, get_custom_reward_fn(cfg))
    own = load_reward_manager(cfg, tokenizer)
    for case, wanted in zip(cases[:24], plain, strict=False):
        info = extra_fields(read_spans(case.spans))
        mask = {"response_mask": tokens(case.spans)[1], "reward_step": 0}
        assert through(lambda: naive, case.spans, case.golden, info) == wanted, case.name
        assert through(lambda: own, case.spans, case.golden, info) == wanted, case.name
        assert through(lambda: own, case.spans, case.golden, mask) == wanted, case.name

    # verl-tool's manager, the whole batch at once
    rows = [(tokens(case.spans)[0], verl_tool_fields(case.spans), case.golden) for case in cases]
    batch = data_proto(rows, global_steps=0)
    result = VerlToolRewardManager(tokenizer, **kwargs)(batch, return_dict=True)
    assert result["reward_tensor"].sum(-1).tolist() == pytest.approx(
        [row["score"] for row in plain], abs=1e-6
    )
    for key in plain[0]:
        assert result["reward_extra_info"][key] == [row[key] for row in plain], key

    # over HTTP, the whole batch at once, as spans
    arguments = [text for key, value in kwargs.items() for text in ("--set", f"{key}={value}")]
    url = service(*arguments)
    items = [
        {
            "spans": [
                {"author": s.author.value, "text": s.text, "token_ids": s.token_ids} for s in case.spans
            ],
            "golden_answers": case.golden,
        }
        for case in cases
    ]
    request = urllib.request.Request(f"{url}/score", data=json.dumps({"trajectories": items}).encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as response:
        answer = json.loads(response.read())
    assert [s["total"] for s in answer["scores"]] == [row["score"] for row in plain]

    # and through verl's manager, which awaits a function that asks the service
    cfg = config(kwargs, "compute_score_http", url=url)
    remote = NaiveRewardManager(cfg, tokenizer, get_custom_reward_fn(cfg))
    assert remote.is_async_reward_score
    for case, wanted in zip(cases[:8], plain, strict=False):
        assert (
            through(lambda: remote, case.spans, case.golden, extra_fields(read_spans(case.spans))) == wanted
        )


def test_the_schedule_reads_the_step_and_insists_on_it() -> None:
    scheduled = {"format_schedule": "linear", "format_steps": 10}
    reading = read_spans([Span(Author.POLICY, "<answer>Lyon</answer>")])
    truth = {"target": ["Paris"]}
    info = extra_fields(reading, step=5)
    assert compute_score("nq", "", truth, info, **scheduled)["score"] == pytest.approx(0.05)
    del info["reward_step"]
    with pytest.raises(ValueError, match="reward_step"):
        compute_score("nq", "", truth, info, **scheduled)


def test_a_service_that_is_not_there_is_an_error_and_not_a_reward() -> None:
    info = extra_fields(read_spans([Span(Author.POLICY, "<answer>Paris</answer>")]))
    with pytest.raises(ValueError, match="no answer from the reward service"):
        asyncio.run(
            compute_score_http("nq", "", {"target": ["Paris"]}, info, url="http://127.0.0.1:9", timeout_s=5)
        )


def test_settings_that_the_gate_refuses_stop_the_first_score() -> None:
    info = extra_fields(read_spans([Span(Author.POLICY, "<answer>Paris</answer>")]))
    with pytest.raises(ValueError, match="reward gate"):
        compute_score("nq", "", {"target": ["Paris"]}, info, step_penalty=2.0)
    with pytest.raises(ValueError, match="stepp_enalty"):
        compute_score("nq", "", {"target": ["Paris"]}, info, stepp_enalty=0.1)
