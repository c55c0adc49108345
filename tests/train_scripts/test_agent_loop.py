"""What reaches verl from one trajectory: the sampled tokens, with the right mask and the right reward."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scout_protocol.errors import UserError
from scout_protocol.records import StopReason, Trace


class ScriptedServer:
    """Stands for verl's inference client: emits the turns of a script, token by token as given."""

    def __init__(self, turns: list[list[int]]) -> None:
        self.turns, self.prompts, self.params = list(turns), [], []  # type: ignore[var-annotated]

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.prompts.append(list(prompt_ids))
        self.params.append(sampling_params)
        ids = self.turns.pop(0)[: sampling_params["max_tokens"]]
        logprobs = [-0.25 * (i + 1) for i in range(len(ids))]
        step = 3 + len(self.prompts)
        fields = {"global_steps": step, "min_global_steps": step, "max_global_steps": step}
        return TokenOutput(token_ids=ids, log_probs=logprobs, extra_fields=fields)


class Played:
    """The result of one trajectory, with what it left behind."""

    def __init__(self, output: Any, server: ScriptedServer, folder: Path, totals: Any) -> None:
        self.output, self.server, self.totals = output, server, totals
        lines = (folder / "traces.jsonl").read_bytes().splitlines()
        self.traces = [msgspec.json.decode(line, type=Trace) for line in lines]


@pytest.fixture
def tokenizer(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_dir)


Play = Callable[..., Played]


@pytest.fixture
def play(compose: Any, tokenizer: Any, tool_server: Any, rows_file: Path, tmp_path: Path) -> Play:
    """``play(*turns, settings)``: turns are text, or ids; the question is the capital of France."""
    from omegaconf import open_dict

    from scout_data.rows import read_rows

    row = read_rows(rows_file)[0]

    def run(*turns: str | list[int], settings: tuple[str, ...] = (), validating: bool = False) -> Played:
        from verl.experimental.agent_loop.agent_loop import DictConfigWrap

        from scout_train.agent_loop import VALIDATING, ScoutAgentLoop, surroundings

        config = compose("grpo", *settings)
        with open_dict(config):
            config.scout.run.dir, config.scout.run.stage, config.scout.run.model = (
                str(tmp_path),
                "grpo",
                "tiny",
            )
            config.scout.tools.url = tool_server.url
        ids = [tokenizer.encode(t, add_special_tokens=False) if isinstance(t, str) else t for t in turns]
        server = ScriptedServer(ids)
        fields = msgspec.structs.asdict(row) | {
            "raw_prompt": row.prompt,
            "uid": "u1",
            "session_id": 5,
            "global_steps": 9,
        }

        async def go() -> Any:
            VALIDATING.set(validating)
            loop = ScoutAgentLoop(
                trainer_config=DictConfigWrap(config),
                server_manager=server,
                tokenizer=tokenizer,
                processor=None,
                dataset_cls=None,
                data_config=DictConfigWrap(config.data),
                hf_model_type="qwen2",
            )
            try:
                return await loop.run({"temperature": 1.0, "logprobs": True}, **fields)
            finally:
                await surroundings(config).close()

        from scout_train import agent_loop

        agent_loop._SURROUNDINGS.clear()
        try:
            output = asyncio.run(go())
        finally:
            totals = surroundings(config).traces.take(9)
        return Played(output, server, tmp_path, totals)

    return run


SEARCH, RIGHT = "<think>hm</think><search>France</search>", "<answer>Paris</answer>"


def test_sampled_tokens_stay_and_observations_are_masked(play: Play, tokenizer: Any) -> None:
    played = play(SEARCH, RIGHT)
    out, trace = played.output, played.traces[0]
    first, second = (tokenizer.encode(t, add_special_tokens=False) for t in (SEARCH, RIGHT))
    seen = trace.spans[2].token_ids
    assert seen is not None and "Paris" in trace.spans[2].text
    assert out.response_ids == first + seen + second
    assert out.response_mask == [1] * len(first) + [0] * len(seen) + [1] * len(second)
    assert [p for p, m in zip(out.response_logprobs, out.response_mask, strict=True) if not m] == [0.0] * len(
        seen
    )
    assert out.response_logprobs[: len(first)] == [-0.25 * (i + 1) for i in range(len(first))]
    assert out.prompt_ids == played.server.prompts[0]
    assert (
        played.server.prompts[1] == out.prompt_ids + first + seen
    )  # what the model reads is what is trained


def test_an_unusual_tokenisation_survives(play: Play, tokenizer: Any) -> None:
    """The policy may write <answer> byte by byte; re-encoding the text would give other tokens."""
    spelled = [tokenizer.encode(c, add_special_tokens=False)[0] for c in RIGHT]
    assert spelled != tokenizer.encode(RIGHT, add_special_tokens=False)
    assert play(spelled).output.response_ids == spelled


@pytest.mark.parametrize(
    ("turns", "reward", "acc"),
    [
        ((SEARCH, RIGHT), 1.0, 1.0),
        ((RIGHT,), 1.0, 1.0),
        (("<answer>Rome</answer>",), 0.1, 0.0),
        # the right answer stands in the observation, the policy ends without one of its own
        ((SEARCH, SEARCH, SEARCH, SEARCH), 0.0, 0.0),
    ],
)
def test_the_reward_reads_the_policys_own_text(
    play: Play, turns: tuple[str, ...], reward: float, acc: float
) -> None:
    out = play(*turns).output
    assert out.reward_score == reward
    assert out.extra_fields["reward_extra_info"]["acc"] == acc


ROME = "<answer>Rome</answer>"
SHAPED = {
    # scout.reward.* -> (turns, reward without it, reward with it); the step of a trajectory is 9
    ("format_score=0.3",): ((ROME,), 0.1, 0.3),
    ("format_schedule=linear", "format_steps=18", "format_end=0.02"): ((ROME,), 0.1, 0.06),
    ("answer_tags=search_r1",): (("<answer>Rome</answer><answer>Paris</answer>",), 0.5, 1.0),
    ("normaliser=folded",): (("<answer>Pâris</answer>",), 0.1, 1.0),
    ("outcome=f1",): (("<answer>Paris France</answer>",), 0.1, 2 / 3),
    ("step_penalty=0.02",): ((SEARCH, RIGHT), 1.0, 0.98),
    ("quadratic_step_penalty=0.01",): ((SEARCH, SEARCH, RIGHT), 1.0, 0.96),
    ("duplicate_query_penalty=0.1",): ((SEARCH, SEARCH, RIGHT), 1.0, 0.9),
    ("duplicate_query_penalty=0.1", "duplicate_query_rouge_l=0.4"): (
        (SEARCH, "<search>France Peru</search>", RIGHT),
        1.0,
        0.9,
    ),
    ("overlong_penalty=0.5", "overlong_max_tokens=2", "overlong_buffer_tokens=1"): ((RIGHT,), 1.0, 0.5),
    ("no_search_penalty=0.2",): ((RIGHT,), 1.0, 0.8),
    ("no_evidence_penalty=0.2",): ((RIGHT,), 1.0, 0.8),
}


@pytest.mark.parametrize("keys", SHAPED, ids=lambda keys: keys[-1].split("=")[0])
def test_every_reward_key_has_the_effect_that_it_names(play: Play, keys: tuple[str, ...]) -> None:
    turns, plain, shaped = SHAPED[keys]
    assert play(*turns).output.reward_score == pytest.approx(plain)
    played = play(*turns, settings=tuple(f"scout.reward.{key}" for key in keys))
    assert played.output.reward_score == pytest.approx(shaped)
    parts = played.output.extra_fields["reward_extra_info"]
    assert all(isinstance(value, float) for value in parts.values())
    assert sum(value for key, value in parts.items() if key.startswith("shaping_")) == pytest.approx(
        shaped - plain if "penalty" in keys[0] else 0.0
    )
    assert played.traces[-1].score["total"] == played.output.reward_score


def test_no_reward_key_is_left_without_a_test_of_its_effect() -> None:
    import dataclasses

    from scout_train.settings import RewardSection

    tried = {key.split("=")[0] for keys in SHAPED for key in keys}
    assert tried == {field.name for field in dataclasses.fields(RewardSection)}


def test_first_and_last_weights_of_a_trajectory_are_told(play: Play) -> None:
    fields = play(SEARCH, RIGHT).output.extra_fields
    assert (fields["min_global_steps"], fields["max_global_steps"]) == (4, 5)


def test_stop_strings_of_the_dialect_are_asked_for(play: Play) -> None:
    params = play(RIGHT).server.params[0]
    assert params["stop"] == ["</search>", "</answer>"] and params["temperature"] == 1.0


def test_an_outage_leaves_no_trace_in_the_loss_and_one_in_the_file(play: Play, tool_server: Any) -> None:
    tool_server.broken = True
    played = play(SEARCH, RIGHT)
    assert played.output == []
    assert played.traces[0].stop_reason is StopReason.INFRA_ERROR and played.traces[0].score == {}
    metrics = played.totals.metrics()
    assert metrics["scout/infra_errors"] == 1 and "scout/em" not in metrics
    assert metrics["scout/stop/infra_error"] == 1.0


def test_a_trajectory_never_exceeds_its_response_length(play: Play) -> None:
    for limit in (24, 30, 40, 60):
        out = play(SEARCH, SEARCH, RIGHT, settings=(f"data.max_response_length={limit}",)).output
        assert len(out.response_ids) == len(out.response_mask) == len(out.response_logprobs) <= limit


def test_an_observation_is_cut_with_both_tags(play: Play) -> None:
    trace = play(SEARCH, RIGHT, settings=("scout.episode.max_obs_tokens=24",)).traces[0]
    seen = trace.spans[2]
    assert seen.token_ids is not None and len(seen.token_ids) <= 24
    assert "<information>" in seen.text and "</information>" in seen.text


def test_a_prompt_that_does_not_fit_is_an_error_not_a_shorter_prompt(play: Play) -> None:
    with pytest.raises(UserError, match="max_prompt_length=20"):
        play(RIGHT, settings=("data.max_prompt_length=20",))


def test_traces_carry_step_stage_group_and_split(play: Play) -> None:
    trace = play(SEARCH, RIGHT, validating=True).traces[0]
    assert (trace.step, trace.stage, trace.model) == (9, "grpo", "tiny")
    assert trace.extra == {"split": "val", "group": "u1", "member": 5}
    assert trace.score["em"] == 1.0 and trace.n_searches == 1


def test_validation_does_not_count_into_the_steps_totals(play: Play) -> None:
    assert play(RIGHT, validating=True).totals.trajectories == 0
    totals = play(SEARCH, RIGHT).totals.metrics()
    assert totals["scout/em"] == 1.0 and totals["scout/searches"] == 1.0 and totals["scout/turns"] == 2.0
    assert totals["scout/stop/answer"] == 1.0
    json.dumps(totals)
