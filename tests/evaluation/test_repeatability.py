"""Greedy, temperature 0, a fixed batch size: the same run gives the same tokens, whatever the tools' pace."""

from __future__ import annotations

import asyncio
import io
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scout_agent.policy import Finish, PolicyTurn, prompt_span
from scout_data.rows import read_rows
from scout_eval.lockstep import Lockstep
from scout_eval.policy_factory import PolicyOptions
from scout_eval.run import EvalConfig, default_settings, run_eval
from scout_eval.trace_log import read_traces, trace_key
from scout_protocol.errors import UserError
from scout_protocol.records import Author, RLRow, Span


class Recorder:
    """A policy that notes which questions act together; each turn takes a while, and ends after its plan."""

    name = "recorder"

    def __init__(self, turns: dict[str, int]) -> None:
        self.turns = turns
        self.batches: list[list[str]] = []
        self.now: list[str] = []

    async def start(self, row: RLRow) -> _Session:
        return _Session(self, row)


class _Session:
    def __init__(self, policy: Recorder, row: RLRow) -> None:
        self.policy, self.row, self.prompt, self.n = policy, row, prompt_span(row), 0

    async def act(self, max_tokens: int) -> PolicyTurn:
        policy = self.policy
        if not policy.now:
            asyncio.get_running_loop().call_later(0.02, self._flush)
        policy.now.append(self.row.id)
        await asyncio.sleep(0.03)
        self.n += 1
        last = self.n >= policy.turns[self.row.id]
        text = "<answer>x</answer>" if last else "<search>q</search>"
        return PolicyTurn(text, Finish.STOP)

    def _flush(self) -> None:
        self.policy.batches.append(self.policy.now)
        self.policy.now = []

    def observe(self, observation: str, max_tokens: int) -> Span:
        return Span(Author.TOOL, observation)


class SlowTools:
    """Answers after a random while."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> Any:
        from scout_agent.client import ToolReply

        await asyncio.sleep(self.random.uniform(0, 0.05))
        return ToolReply("\n\n<information>x</information>\n\n", True, False, 0.0)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_wave_acts_together_in_the_rows_order(rows_file: Any, seed: int) -> None:
    from scout_agent.episode import TraceLabels, run_episodes

    rows = read_rows(rows_file(5))
    turns = dict(zip([row.id for row in rows], [3, 1, 2, 4, 3], strict=True))
    policy = Recorder(turns)

    async def play() -> None:
        wave = Lockstep(policy, rows)
        settings = replace(default_settings(), max_turns=5)
        async for index, _ in run_episodes(rows, wave, SlowTools(seed), settings, TraceLabels("m", "s"), 5):
            wave.leave(index)

    asyncio.run(play())
    ids = [row.id for row in rows]
    assert policy.batches == [[i for i in ids if turns[i] > turn] for turn in range(4)]


def test_a_member_that_times_out_does_not_hold_the_others(rows_file: Any) -> None:
    from scout_agent.episode import TraceLabels, run_episodes

    rows = read_rows(rows_file(3))
    policy = Recorder({row.id: 2 for row in rows})

    class Stuck(SlowTools):
        async def call(self, trajectory_id: str, action: str, is_last_step: bool = False) -> Any:
            self.n = getattr(self, "n", 0) + 1
            if self.n == 1:
                await asyncio.sleep(3600)
            return await super().call(trajectory_id, action, is_last_step)

    async def play() -> list[str]:
        wave = Lockstep(policy, rows)
        settings = replace(default_settings(), trajectory_timeout_s=0.6)
        stops = []
        played = run_episodes(rows, wave, Stuck(0), settings, TraceLabels("m", "s"), 3)
        async for index, trace in played:
            wave.leave(index)
            stops.append(trace.stop_reason.value)
        return sorted(stops)

    assert asyncio.run(asyncio.wait_for(play(), 20)).count("trajectory_timeout") >= 1


@pytest.fixture
def play(server: Any, rows_file: Any, model_folder: Path, tmp_path: Path) -> Any:
    path = rows_file(10)

    def run(name: str, concurrency: int = 64, batch: int = 4, **changes: Any) -> dict[str, Any]:
        server.pause_s = random.Random(name).uniform(0, 0.05)
        config = EvalConfig(
            path,
            f"hf:{model_folder}",
            server.url,
            tmp_path / name,
            concurrency=concurrency,
            settings=replace(default_settings(), max_turn_tokens=24, max_response_tokens=256),
            options=PolicyOptions(batch_size=batch, threads=1, temperature=changes.pop("temperature", 0.0)),
            **changes,
        )
        run_eval(config, Console(file=io.StringIO()))
        found = {}
        for trace in read_traces(tmp_path / name / "traces.jsonl"):
            policy = [s for s in trace.spans if s.author is Author.POLICY]
            found[trace_key(trace)] = [(s.token_ids, s.logprobs) for s in policy]
        return found

    return run


def test_greedy_repeats_bit_for_bit(play: Any, tmp_path: Path) -> None:
    first = play("first")
    assert len(first) == 10 and all(turns[0][0] for turns in first.values())
    assert play("second") == first  # token ids and log-probabilities


def test_after_a_kill_the_rest_is_what_it_would_have_been(play: Any, tmp_path: Path) -> None:
    whole = play("whole")
    lines = (tmp_path / "whole" / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "traces.jsonl").write_bytes(b"".join(lines[:6]))
    (tmp_path / "part" / "run.json").write_bytes((tmp_path / "whole" / "run.json").read_bytes())
    assert play("part") == whole
    assert (tmp_path / "part" / "traces.jsonl").read_bytes().startswith(b"".join(lines[:6]))


def test_another_batch_size_is_another_evaluation(play: Any) -> None:
    play("out", batch=4)
    with pytest.raises(UserError, match="another batch_size "):
        play("out", batch=5)


def test_samples_are_traces_of_their_own(play: Any, tmp_path: Path) -> None:
    found = play("samples", samples=3, temperature=1.0, limit=4)
    assert len(found) == 12
    by_question: dict[str, list[Any]] = {}
    for key, turns in found.items():
        by_question.setdefault(key.split("#")[0], []).append(turns)
    assert len(by_question) == 4
    assert all(len({str(t) for t in turns}) == 3 for turns in by_question.values())  # really sampled


def test_samples_at_temperature_zero_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="set --temperature"):
        EvalConfig(tmp_path / "x", "oracle", "http://127.0.0.1:1", tmp_path, samples=4)
