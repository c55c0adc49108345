"""One trajectory that is told what to write, and the first batch as the model plays it.

Both go through the project's own episode loop, the real tokenizer and the real tool server, and end in the
arrays that would be trained (`scout_train.tokens.flatten`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode, run_episodes
from scout_agent.policy import Finish, PolicyTurn
from scout_agent.tool_access import token_from_env
from scout_agent.transformers_policy import observation_token_ids, prompt_token_ids
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.records import Author, RLRow, Span, StopReason, Trace
from scout_reward.score import score_trace
from scout_train.preflight.finding import Finding, ok, refuse, warn
from scout_train.settings import read_settings, reward_settings
from scout_train.tokens import flatten

MOST_WEIGHTS_BYTES = 2 * 2**30  # larger models are not loaded for a check
MOST_ROWS = 8


class Told:
    """A policy that writes what it is told, in the tokens of a real tokenizer: policy and session at once."""

    name = "preflight"

    def __init__(self, tokenizer: Any, dialect: Dialect, turns: Sequence[str]) -> None:
        self.tokenizer, self.dialect, self.turns = tokenizer, dialect, list(turns)

    async def start(self, row: RLRow) -> Told:
        ids = prompt_token_ids(self.tokenizer, row.prompt)
        self.prompt = Span(Author.PROMPT, self.tokenizer.decode(ids), ids)
        return self

    async def act(self, max_tokens: int) -> PolicyTurn:
        ids = self.tokenizer.encode(self.turns.pop(0), add_special_tokens=False)[:max_tokens]
        text = self.tokenizer.decode(ids)
        stopped = any(stop in text for stop in self.dialect.stops)
        return PolicyTurn(text, Finish.STOP if stopped else Finish.LENGTH, ids, [0.0] * len(ids))

    def observe(self, observation: str, max_tokens: int) -> Span:
        ids = observation_token_ids(self.tokenizer, observation, self.dialect, max_tokens)
        return Span(Author.TOOL, self.tokenizer.decode(ids), ids)


def _settings(config: Any) -> EpisodeSettings:
    episode = read_settings(config).episode
    return EpisodeSettings(**asdict(episode), max_response_tokens=int(config.data.max_response_length))


def _tools(config: Any, url: str) -> HttpTools:
    token = token_from_env(str(config.scout.tools.token_env))
    return HttpTools(url, float(config.scout.tools.timeout_s), token=token)


def tool_call(config: Any, tokenizer: Any, rows: Sequence[RLRow], url: str) -> Finding:
    """A search and a golden answer: the call is executed and masked, the answer ends it with 1.0."""
    dialect, row, settings = get_dialect(str(config.scout.episode.dialect)), rows[0], _settings(config)
    think = f"{dialect.think.open}look{dialect.think.close}"
    search = f"{think}{dialect.search.open} {row.question} {dialect.search.close}"
    answer = f"{dialect.answer.open} {row.golden_answers[0]} {dialect.answer.close}"

    async def play() -> Trace:
        async with _tools(config, url) as tools:
            return await run_episode(
                row, Told(tokenizer, dialect, [search, answer]), tools, settings, TraceLabels("", "")
            )

    trace = asyncio.run(play())
    if told := wrong(trace, tokenizer, dialect):
        return refuse("tool-call", *told)
    if settings.max_turns < 2:
        return refuse(
            "tool-call", "max_turns is 1", "a search and an answer take two: raise scout.episode.max_turns"
        )
    if trace.stop_reason is not StopReason.ANSWER:
        remedy = "raise scout.episode.max_turn_tokens or data.max_response_length"
        return refuse("tool-call", f"a search and the golden answer end with {trace.stop_reason}", remedy)
    score = score_trace(trace, reward_settings(read_settings(config).reward).unshaped())
    if score is None or score.total != 1.0:
        return refuse(
            "tool-call",
            f"the golden answer after a search scores {score and score.total}",
            "see scout reward explain",
        )
    _, mask, _ = flatten(trace)
    call = trace.tool_calls[0]
    return ok(
        "tool-call",
        f"executed in {1000 * call.latency_s:.0f} ms, {mask.count(0)} observation tokens masked, "
        f"{sum(mask)} trained, the golden answer scores 1.0",
    )


def wrong(trace: Trace, tokenizer: Any, dialect: Dialect) -> tuple[str, str] | None:
    """``(found, remedy)`` where a trajectory is not what may be trained; None where all is well."""
    for call in trace.tool_calls:
        if call.infra_error:
            return (
                f"the tool call failed ({call.error_kind})",
                "see the tool server's log: is its backend reachable?",
            )
        if not call.valid:
            return (
                f"the tool server calls {call.query[:60]!r} invalid",
                "do server and recipe speak one dialect? (scout.episode.dialect)",
            )
    ids, mask, _ = flatten(trace)
    own = [t for s in trace.spans[1:] if s.author is Author.POLICY for t in s.token_ids or []]
    if [t for t, m in zip(ids, mask, strict=True) if m] != own:
        return "the mask does not select the policy's tokens", "this is a defect: please report it"
    for span in trace.spans[1:]:
        if span.author is Author.TOOL and dialect.observation.open not in span.text:
            return (
                f"the observation has no {dialect.observation.open}",
                "do server and recipe speak one dialect? (scout.episode.dialect)",
            )
        if span.author is Author.POLICY:
            whole = span.token_ids or []
            before = tokenizer.decode(whole[:-1])
            if any(stop in before for stop in dialect.stops):
                return (
                    f"a turn goes on after its stop string: {span.text[-60:]!r}",
                    "the engine ignores stop strings",
                )
    return None


def rollout(
    config: Any, tokenizer: Any, rows: Sequence[RLRow], url: str, model: str, model_bytes: int
) -> Finding:
    """The first questions as the model plays them, sampled as in training."""
    if model_bytes > MOST_WEIGHTS_BYTES:
        return ok(
            "rollout",
            f"not played: {model_bytes / 2**30:.0f} GiB of weights are not loaded for a check; tool-call is",
        )
    from scout_agent.transformers_policy import TransformersPolicy

    dialect, settings = get_dialect(str(config.scout.episode.dialect)), _settings(config)
    batch = list(rows[: min(MOST_ROWS, int(config.data.train_batch_size))])
    policy = TransformersPolicy.load(
        model,
        dialect.name,
        float(config.actor_rollout_ref.rollout.temperature),
        max_model_len=int(config.data.max_prompt_length) + int(config.data.max_response_length),
        threads=int(config.scout.cluster.torch_threads),
    )

    async def play() -> list[Trace]:
        async with _tools(config, url) as tools:
            played = run_episodes(batch, policy, tools, settings, TraceLabels("", ""), concurrency=len(batch))
            return [trace async for _, trace in played]

    traces = asyncio.run(play())
    for trace in traces:
        if told := wrong(trace, tokenizer, dialect):
            return refuse("rollout", *told)
    searched = sum(bool(t.n_searches) for t in traces)
    answered = sum(t.stop_reason is StopReason.ANSWER for t in traces)
    said = f"of {len(traces)} rollouts {searched} searched and {answered} answered"
    if not searched and not answered:
        return warn("rollout", said, "RL has nothing to strengthen: warm the model up first (make sft)")
    if not searched:
        return warn(
            "rollout", said, "a policy that never searches rarely learns to: warm it up first (make sft)"
        )
    return ok("rollout", f"{said}; calls executed, observations masked, every turn ends at its stop string")
