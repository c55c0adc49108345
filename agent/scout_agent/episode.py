"""The episode loop: policy turn, tool call, observation, until there is a reason to stop.

The same loop serves evaluation, demonstrations and the trainer's rollouts: a policy that has tokens
hands over the sampled ones, and they are what is scored, traced and trained.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from scout_agent.client import Tools
from scout_agent.policy import Finish, Policy, PolicyUnavailableError, Session
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import Author, RLRow, Span, StopReason, ToolCall, Trace
from scout_protocol.turn import Action, parse


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """The budget of one trajectory.

    ``max_turns`` counts policy turns: with 4, at most three searches and then an answer. Token limits
    apply to policies that count tokens; ``max_response_tokens`` covers policy and tool tokens together.
    """

    dialect: str = "search-r1"
    max_turns: int = 4
    max_turn_tokens: int = 256
    max_response_tokens: int = 2048
    max_obs_tokens: int = 512
    turn_timeout_s: float = 60.0
    trajectory_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        get_dialect(self.dialect)
        for name in (
            "max_turns",
            "max_turn_tokens",
            "max_response_tokens",
            "max_obs_tokens",
            "turn_timeout_s",
            "trajectory_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise UserError(name, getattr(self, name), "must be greater than 0")


@dataclass(frozen=True, slots=True)
class TraceLabels:
    """What the caller knows about the run and the trace should carry."""

    model: str
    stage: str
    step: int = 0
    prompt_sha256: str = ""


@dataclass(slots=True)
class _Progress:
    """What has been gathered so far; kept outside the coroutine so that a timeout loses nothing."""

    spans: list[Span]
    calls: list[ToolCall]
    n_turns: int = 0
    n_searches: int = 0
    turn_extras: list[dict[str, Any]] = field(default_factory=list)
    policy_error: str = ""


async def run_episode(
    row: RLRow, policy: Policy, tools: Tools, settings: EpisodeSettings, labels: TraceLabels
) -> Trace:
    """Play one question to its end and return the trajectory, not yet scored.

    Outages of the tool, or of the policy's own endpoint, end the trajectory with
    `StopReason.INFRA_ERROR`; they never become text.
    """
    start = time.perf_counter()
    trace_id = uuid.uuid4().hex
    progress = _Progress([], [])
    for_row = getattr(tools, "for_row", None)  # see client.RowTools
    if for_row is not None:
        tools = for_row(row)
    try:
        async with asyncio.timeout(settings.trajectory_timeout_s):
            session = await policy.start(row)
            progress.spans.append(session.prompt)
            stop = await _play(session, tools, settings, trace_id, progress)
    except TimeoutError:
        stop = StopReason.TRAJECTORY_TIMEOUT
    except PolicyUnavailableError as error:
        stop, progress.policy_error = StopReason.INFRA_ERROR, error.kind
    return _trace(row, settings, labels, trace_id, progress, stop, time.perf_counter() - start)


async def _play(
    session: Session, tools: Tools, settings: EpisodeSettings, trace_id: str, progress: _Progress
) -> StopReason:
    dialect = get_dialect(settings.dialect)
    used_tokens = 0
    while True:
        room = settings.max_response_tokens - used_tokens
        if room <= 0:
            return StopReason.LENGTH
        try:
            async with asyncio.timeout(settings.turn_timeout_s):
                turn = await session.act(min(room, settings.max_turn_tokens))
        except TimeoutError:
            return StopReason.TURN_TIMEOUT
        progress.spans.append(Span(Author.POLICY, turn.text, turn.token_ids, turn.logprobs))
        progress.turn_extras.append(turn.extra)
        progress.n_turns += 1
        used_tokens += len(turn.token_ids or ())
        parsed = parse(turn.text, dialect)
        if parsed.action is Action.ANSWER:
            return StopReason.ANSWER
        if turn.finish is Finish.LENGTH:
            return StopReason.LENGTH
        if parsed.action is Action.MALFORMED and turn.finish is Finish.EOS:
            return StopReason.EOS
        if progress.n_turns >= settings.max_turns:
            return StopReason.MAX_TURNS if parsed.action is Action.SEARCH else StopReason.MALFORMED
        if parsed.action is Action.SEARCH:
            progress.n_searches += 1

        reply = await tools.call(trace_id, turn.text[: parsed.end])
        progress.calls.append(
            ToolCall(
                parsed.text, reply.latency_s, reply.valid, reply.infra_error, reply.error_kind, reply.cache
            )
        )
        if reply.infra_error:
            return StopReason.INFRA_ERROR
        room = settings.max_response_tokens - used_tokens
        try:
            span = session.observe(reply.observation, min(settings.max_obs_tokens, room))
        except UserError:
            if room >= settings.max_obs_tokens:
                raise  # the setting itself is too small: the user must hear of it
            return StopReason.LENGTH  # what is left cannot even hold the frame of an observation
        progress.spans.append(span)
        used_tokens += len(span.token_ids or ())


def _trace(
    row: RLRow,
    settings: EpisodeSettings,
    labels: TraceLabels,
    trace_id: str,
    progress: _Progress,
    stop: StopReason,
    wall_s: float,
) -> Trace:
    def count(author: Author) -> int | None:
        spans = [s for s in progress.spans if s.author is author]
        if any(s.token_ids is None for s in spans):
            return None
        return sum(len(s.token_ids or ()) for s in spans)

    extra: dict[str, Any] = {}
    if any(progress.turn_extras):
        extra["turns"] = progress.turn_extras
    if progress.policy_error:
        extra["policy_error"] = progress.policy_error
    return Trace(
        trace_id=trace_id,
        question_id=row.id,
        data_source=row.data_source,
        question=row.question,
        golden_answers=list(row.golden_answers),
        spans=progress.spans,
        tool_calls=progress.calls,
        stop_reason=stop,
        n_turns=progress.n_turns,
        n_searches=progress.n_searches,
        n_policy_tokens=count(Author.POLICY),
        n_tool_tokens=count(Author.TOOL),
        score={},
        model=labels.model,
        stage=labels.stage,
        step=labels.step,
        prompt_sha256=labels.prompt_sha256,
        dialect=settings.dialect,
        wall_s=wall_s,
        extra=extra,
    )


async def run_episodes(
    rows: Iterable[RLRow],
    policy: Policy,
    tools: Tools,
    settings: EpisodeSettings,
    labels: TraceLabels,
    concurrency: int = 64,
    on_done: Callable[[Trace], None] | None = None,
) -> AsyncIterator[tuple[int, Trace]]:
    """Play many questions at once; yields ``(index of the row, trace)`` in the order they finish.

    Rows are drawn one by one as slots free up, so ``rows`` may be longer than memory. An error in one
    episode (a defect, not an outage) cancels the others and is raised.

    Raises:
        UserError: ``concurrency`` is below 1.
    """
    if concurrency < 1:
        raise UserError("concurrency", concurrency, "must be at least 1")
    source = enumerate(rows)
    running: dict[asyncio.Task[Trace], int] = {}
    try:
        while True:
            while len(running) < concurrency:
                item = next(source, None)
                if item is None:
                    break
                index, row = item
                running[asyncio.create_task(run_episode(row, policy, tools, settings, labels))] = index
            if not running:
                return
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                index = running.pop(task)
                trace = task.result()
                if on_done is not None:
                    on_done(trace)
                yield index, trace
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
