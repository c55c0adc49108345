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

    def __init__(self, turns: list[Any]) -> None:
        self.turns, self.prompts, self.params = list(turns), [], []  # type: ignore[var-annotated]

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        self.prompts.append(list(prompt_ids))
        self.params.append(sampling_params)
        turn = self.turns.pop(0)
        if isinstance(turn, float):
            await asyncio.sleep(turn)
            raise AssertionError("the deadline did not come")
        ids = turn[: sampling_params["max_tokens"]]
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
            totals = run.totals = surroundings(config).traces.take(9)  # type: ignore[attr-defined]
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
    ("answer_tags=search_r1",): (("<answer>" * 11 + "Rome</answer>", RIGHT), 0.5, 0.25),
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
    elsewhere = {"timeout_score", "overlong_mask"}  # what they do needs more than two turns: see below
    assert tried | elsewhere == {field.name for field in dataclasses.fields(RewardSection)}


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


# --- tokens in, tokens out -----------------------------------------------------------------------------


def test_re_encoded_text_is_caught_counted_and_not_trained(
    play: Play, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that re-encodes what was written, as several agent loops do, on an unusual tokenisation."""
    from scout_train import agent_loop

    act = agent_loop.ServerSession.act

    async def re_encoding(self: Any, max_tokens: int) -> Any:
        turn = await act(self, max_tokens)
        ids = tokenizer.encode(turn.text, add_special_tokens=False)
        return type(turn)(turn.text, turn.finish, ids, [0.0] * len(ids))

    spelled = [tokenizer.encode(c, add_special_tokens=False)[0] for c in RIGHT]
    assert play(spelled).totals.metrics()["scout/retokenisation_drift"] == 0
    monkeypatch.setattr(agent_loop.ServerSession, "act", re_encoding)
    with pytest.raises(agent_loop.DriftError):
        play(spelled)
    assert play.totals.drifted_tokens > 0 and play.totals.lost == {"DriftError": 1}  # type: ignore[attr-defined]


def test_drift_counts_positions() -> None:
    from scout_train.agent_loop import Sampled, drift

    sampled = Sampled()
    sampled.add([1, 2], [3, 4])
    sampled.add([1, 2, 3, 4, 9, 9], [5])
    mask = [0, 0, 1, 1, 0, 0, 1]
    assert drift([1, 2, 3, 4, 9, 9, 5], mask, sampled) == 0
    assert drift([1, 2, 3, 7, 9, 9, 5], mask, sampled) == 1  # another token would be trained
    assert drift([1, 2, 3, 4, 9, 8, 5], mask, sampled) == 1  # the model read another observation
    assert (
        drift([1, 2, 3, 4, 9, 9, 5], [0, 0, 1, 1, 0, 1, 1], sampled) == 1
    )  # an observation would be trained
    assert drift([1, 2, 3, 4], [0, 0, 1, 1], sampled) == 3  # a turn is missing


@pytest.mark.parametrize("more", ["<search>again</search>", "x", "\n\n<answer>Rome</answer>"])
def test_nothing_after_the_stop_string_is_kept(play: Play, tokenizer: Any, more: str) -> None:
    """An engine that stops late (several tokens in one go) is cut after the token that completes the tag."""
    first = tokenizer.encode(SEARCH, add_special_tokens=False)
    late = tokenizer.encode(more, add_special_tokens=False)
    played = play(first + late, RIGHT)
    trace = played.traces[0]
    assert trace.spans[1].text == SEARCH and trace.spans[1].token_ids == first
    assert len(trace.spans[1].logprobs or []) == len(first)
    assert played.server.prompts[1][: len(played.server.prompts[0]) + len(first)][-len(first) :] == first
    assert played.totals.metrics()["scout/tokens_after_stop"] == len(late)
    assert played.output.extra_fields["reward_extra_info"]["acc"] == 1.0


# --- options, each with its effect ---------------------------------------------------------------------


def test_force_answer_is_tool_text_without_loss(play: Play) -> None:
    options = ("scout.episode.max_turns=2", "scout.episode.force_answer=true")
    played = play(SEARCH, RIGHT, settings=options)
    trace, out = played.traces[0], played.output
    assert "last turn" in trace.spans[3].text and trace.spans[3].author == "tool"
    assert sum(out.response_mask) == trace.n_policy_tokens == out.extra_fields["policy_tokens"]
    assert len(out.response_mask) - sum(out.response_mask) == trace.n_tool_tokens
    assert out.reward_score == 1.0 and played.totals.metrics()["scout/forced_answers"] == 1
    assert "last turn" not in "".join(
        s.text for s in play(SEARCH, RIGHT, settings=options[:1]).traces[-1].spans
    )


def test_repeated_searches_are_cut(play: Play, tool_server: Any) -> None:
    played = play(SEARCH, SEARCH, RIGHT, settings=("scout.episode.max_same_searches=1",))
    assert tool_server.calls == 1 and played.totals.metrics()["scout/cut_searches"] == 1
    assert played.traces[0].n_searches == 1


def test_a_straggler_gets_the_fallback_reward_and_its_own_stop_reason(play: Play) -> None:
    options = ("scout.episode.trajectory_timeout_s=1.0", "scout.reward.timeout_score=-0.5")
    played = play(SEARCH, 30.0, settings=options)
    trace = played.traces[0]
    assert trace.stop_reason is StopReason.TRAJECTORY_TIMEOUT
    assert played.output.reward_score == trace.score["total"] == -0.5
    assert played.output.extra_fields["reward_extra_info"]["acc"] == 0.0
    assert sum(played.output.response_mask) == trace.n_policy_tokens
    assert play(SEARCH, 30.0, settings=options[:1]).output.reward_score == 0.0


def test_a_straggler_without_a_token_has_nothing_to_train(play: Play) -> None:
    played = play(30.0, settings=("scout.episode.trajectory_timeout_s=0.5",))
    assert played.output == [] and played.totals.lost == {"trajectory_timeout before the first turn": 1}


def test_masked_overlong_keeps_the_reward_and_loses_the_loss(play: Play) -> None:
    short = ("data.max_response_length=24",)
    mask = (*short, "scout.reward.overlong_mask=true")
    plain, masked = play(SEARCH, RIGHT, settings=short), play(SEARCH, RIGHT, settings=mask)
    assert masked.traces[-1].stop_reason is StopReason.LENGTH
    assert sum(plain.output.response_mask) > 0 and sum(masked.output.response_mask) == 0
    assert masked.output.response_ids == plain.output.response_ids
    assert masked.totals.metrics()["scout/masked_overlong"] == 1


def test_an_answer_on_the_last_allowed_turn_is_never_masked(play: Play) -> None:
    """verl-tool's mask_overlong_loss zeroes exactly this trajectory."""
    options = ("scout.episode.max_turns=2", "scout.reward.overlong_mask=true")
    played = play(SEARCH, RIGHT, settings=options)
    assert sum(played.output.response_mask) == played.traces[0].n_policy_tokens > 0
    assert played.output.reward_score == 1.0


def test_soft_punishment_counts_policy_tokens_only(play: Play) -> None:
    n = play(SEARCH, RIGHT).traces[0].n_policy_tokens
    assert n is not None
    limits = (f"scout.reward.overlong_max_tokens={n + 2}", "scout.reward.overlong_buffer_tokens=4")
    played = play(SEARCH, RIGHT, settings=(*limits, "scout.reward.overlong_penalty=0.8"))
    assert played.output.reward_score == pytest.approx(1.0 - 0.8 * 2 / 4)  # half of the buffer is used
    assert played.output.extra_fields["reward_extra_info"]["acc"] == 1.0  # the filter sees the outcome
    assert played.output.extra_fields["reward_extra_info"]["shaping_overlong"] == pytest.approx(-0.4)


def test_a_hanging_tool_is_an_outage_not_a_straggler(play: Play, tool_server: Any) -> None:
    tool_server.hang_s = 5.0
    played = play(SEARCH, RIGHT, settings=("scout.episode.trajectory_timeout_s=1.0",))
    assert played.output == [] and played.totals.lost == {"deadline": 1}
    assert played.traces[0].stop_reason is StopReason.INFRA_ERROR and played.traces[0].score == {}


def test_patience_waits_for_a_server_that_comes_back(play: Play, tool_server: Any) -> None:
    tool_server.broken_calls = 2
    played = play(SEARCH, RIGHT, settings=("scout.tools.outage_patience_s=20",))
    assert played.output.reward_score == 1.0 and tool_server.calls == 3
    tool_server.broken_calls = 1
    assert play(SEARCH, RIGHT).output == []  # without patience one refusal is an outage


def test_the_log_says_why_trajectories_were_lost(play: Play, tool_server: Any) -> None:
    tool_server.broken = True
    assert play(SEARCH).totals.lost == {"http_503": 1}


def test_an_observation_that_nobody_answered_is_not_trained(play: Play, tokenizer: Any) -> None:
    """verl puts the reward on the last token, and GAE reads it only where the policy wrote."""
    n_first = len(tokenizer.encode(SEARCH, add_special_tokens=False))
    for room in (n_first + 8, n_first + 200):
        played = play(SEARCH, SEARCH, SEARCH, SEARCH, settings=(f"data.max_response_length={room}",))
        out, trace = played.output, played.traces[-1]
        if trace.spans[-1].author.value == "tool":
            assert len(out.response_ids) < sum(len(s.token_ids or ()) for s in trace.spans[1:])
        assert out.response_mask[-1] == 1
        assert len(out.response_ids) == len(out.response_mask) == len(out.response_logprobs)
        assert len(out.extra_fields["anchors"]) == trace.n_turns
