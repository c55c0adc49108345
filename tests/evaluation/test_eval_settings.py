"""What an evaluation is told: the run's budget and reward, in the numbers, the record and the fingerprint."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from scout_agent.episode import EpisodeSettings
from scout_data.rows import make_row
from scout_eval.card import fingerprint, fingerprint_id
from scout_eval.cli import main, parser
from scout_eval.outcomes import outcome
from scout_eval.run import EvalConfig, finish_trace, run_eval
from scout_eval.run_cli import run_config
from scout_eval.summary import Summary, read_summary
from scout_eval.trace_log import read_traces
from scout_protocol.errors import UserError
from scout_protocol.records import Author
from scout_reward.settings import RewardSettings

EPISODE = {
    "dialect": "search-r1",
    "max_turns": 3,
    "max_turn_tokens": 64,
    "max_obs_tokens": 96,
    "turn_timeout_s": 1.0,
    "trajectory_timeout_s": 2.0,
    "force_answer": True,
    "max_same_searches": 2,
}
REWARD = RewardSettings(step_penalty=0.05, format_score=0.2)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """A training run's folder, as far as an evaluation reads it."""
    reward = {name: getattr(REWARD, name) for name in REWARD.__dataclass_fields__}
    config = {
        "data": {"max_response_length": 384},
        "scout": {"episode": EPISODE, "reward": reward | {"timeout_score": 0.0, "overlong_mask": False}},
    }
    folder = tmp_path / "trained"
    folder.mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def configured(*words: object) -> EvalConfig:
    base = ["run", "--rows", "r.parquet", "--policy", "oracle", "--tools", "http://x:1", "--out", "o"]
    return run_config(parser().parse_args([*base, *map(str, words)]))


def evaluate(server: Any, rows: Path, out: Path, **changes: Any) -> Summary:
    config = EvalConfig(rows=rows, policy="oracle", tools=server.url, out=out, **changes)
    return run_eval(config, Console(file=io.StringIO()))


def test_the_defaults_are_those_of_before() -> None:
    config = configured()
    assert config.settings == EpisodeSettings(turn_timeout_s=120.0, trajectory_timeout_s=600.0)
    assert config.reward == RewardSettings()


def test_like_takes_the_budget_and_the_reward_of_a_run(run_folder: Path) -> None:
    config = configured("--like", run_folder)
    assert config.settings == EpisodeSettings(
        max_turns=3,
        max_turn_tokens=64,
        max_response_tokens=384,
        max_obs_tokens=96,
        turn_timeout_s=120.0,  # what this machine needs, not what the policy may
        trajectory_timeout_s=600.0,
        force_answer=True,
        max_same_searches=2,
    )
    assert config.reward == REWARD


def test_options_stand_above_the_run(run_folder: Path) -> None:
    config = configured(
        *("--like", run_folder, "--max-turns", 5, "--no-force-answer", "--max-same-searches", 0),
        *("--set", "format_score=0.1", "--set", "no_search_penalty=0.3"),
    )
    assert (config.settings.max_turns, config.settings.force_answer) == (5, False)
    assert (config.settings.max_same_searches, config.settings.max_turn_tokens) == (0, 64)
    assert config.reward == RewardSettings(step_penalty=0.05, no_search_penalty=0.3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "scout train --out"),
        ("scout: [", "cannot be read"),
        ("- a list", "cannot be read"),
        ("scout: {episode: {}}", "another version"),
    ],
)
def test_a_folder_that_is_no_run(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=message) as error:
        configured("--like", tmp_path)
    assert "\n" not in str(error.value)


def test_the_reward_column_is_the_runs_and_em_is_the_papers(
    server: Any, rows_file: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, reward = rows_file(50), RewardSettings(step_penalty=0.02, format_score=0.2)
    plain = evaluate(server, rows, tmp_path / "a")
    shaped = evaluate(server, rows, tmp_path / "b", reward=reward)
    assert shaped.metrics.overall.em == plain.metrics.overall.em
    # 40 of 50 are right, 10 answer and are wrong; every trajectory searches once
    assert plain.metrics.overall.score == pytest.approx((40 * 1.0 + 10 * 0.1) / 50)
    assert shaped.metrics.overall.score == pytest.approx((40 * 1.0 + 10 * 0.2) / 50 - 0.02)
    assert all(t.score["shaping"] == {"steps": -0.02} for t in read_traces(tmp_path / "b" / "traces.jsonl"))
    ours, theirs = fingerprint(shaped), fingerprint(plain)
    assert ours["reward"] == "defaults, but format_score 0.2, step_penalty 0.02"
    assert theirs["reward"].startswith("defaults (") and fingerprint_id(ours) != fingerprint_id(theirs)


def test_a_folder_belongs_to_one_reward(server: Any, rows_file: Any, tmp_path: Path) -> None:
    rows = rows_file(4)
    evaluate(server, rows, tmp_path / "out")
    with pytest.raises(UserError, match="another reward step_penalty"):
        evaluate(server, rows, tmp_path / "out", reward=RewardSettings(step_penalty=0.02))


def test_under_another_normaliser_em_and_f1_stay_the_papers(make_trace: Any) -> None:
    trace = make_trace(turns=("<answer>Beyoncé</answer>",), golden_answers=["Beyonce"])
    row = make_row("Who?", ["Beyonce"], "search_r1", "made", "test", 0, {})
    finish_trace(trace, row, "none", reward=RewardSettings(normaliser="folded"))
    found = outcome(trace)
    assert (found.total, found.em, found.em_folded, found.f1) == (1.0, 0.0, 1.0, 0.0)


def test_the_last_turn_is_announced(server: Any, rows_file: Any, tmp_path: Path) -> None:
    settings = EpisodeSettings(max_turns=2, force_answer=True, turn_timeout_s=120.0)
    evaluate(server, rows_file(4), tmp_path / "out", settings=settings)
    for trace in read_traces(tmp_path / "out" / "traces.jsonl"):
        said = [span.text for span in trace.spans if span.author is Author.TOOL]
        assert trace.extra["forced_answer"] and "last turn" in said[-1]
    assert read_summary(tmp_path / "out").identity.settings["force_answer"] is True


@pytest.mark.parametrize(
    ("reward", "remedy"),
    [
        ({"format_schedule": "linear", "format_steps": 10}, "--step"),
        ({"overlong_penalty": 0.5, "overlong_max_tokens": 9, "overlong_buffer_tokens": 3}, "hf: policy"),
        ({"step_penalty": 0.9}, "lower the penalties"),
    ],
)
def test_a_reward_that_cannot_be_given(
    server: Any, rows_file: Any, tmp_path: Path, reward: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(UserError, match=remedy):
        evaluate(server, rows_file(4), tmp_path / "out", reward=RewardSettings(**reward))
    assert not (tmp_path / "out").exists()


def test_a_decaying_format_score_is_that_of_the_step(server: Any, rows_file: Any, tmp_path: Path) -> None:
    reward = RewardSettings(format_schedule="linear", format_steps=10, format_score=0.2)
    rows = rows_file(50)
    for step, wrong in ((0, 0.2), (5, 0.1), (10, 0.0), (99, 0.0)):
        found = evaluate(server, rows, tmp_path / str(step), reward=reward, step=step)
        assert found.metrics.overall.score == pytest.approx((40 + 10 * wrong) / 50)
        assert fingerprint(found)["reward"].endswith(f"step {step}")


def test_the_command_line_prints_the_reward(
    server: Any, rows_file: Any, tmp_path: Path, run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", "--rows", rows_file(5), "--policy", "oracle", "--tools", server.url]
    assert main([*map(str, [*words, "--out", tmp_path / "out", "--like", run_folder])]) == 0
    assert "reward: defaults, but format_score 0.2, step_penalty 0.05" in capsys.readouterr().out


def test_the_token_goes_with_every_request(
    server: Any, rows_file: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.token = "a-made-up-token"
    monkeypatch.setenv("MY_TOKEN", server.token)
    rows, out = rows_file(10), tmp_path / "out"
    with pytest.raises(UserError, match="--tools-token-env"):
        evaluate(server, rows, out)
    assert not out.exists()
    found = evaluate(server, rows, out, tools_token_env="MY_TOKEN", control="random")  # /retrieve, too
    assert found.metrics.n_infra_errors == 0 and server.retrieved
    evaluate(server, rows, tmp_path / "plain", tools_token_env="MY_TOKEN")
    with pytest.raises(UserError, match="--tools-token-env"):
        main(["card", str(tmp_path / "plain"), "--tools", server.url])
    words = ["card", str(tmp_path / "plain"), "--tools", server.url, "--tools-token-env", "MY_TOKEN"]
    assert main(words) == 0
    kept = [path.read_text() for path in tmp_path.rglob("*.json*")]
    assert kept and not any(server.token in text for text in kept)
