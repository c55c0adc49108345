"""The episode loop: policy turn, tool call, observation, until there is a reason to stop.

The same loop serves evaluation, demonstrations and the trainer's rollouts: a policy that has tokens
hands over the sampled ones, and they are what is scored, traced and trained.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from scout_agent.client import Tools
from scout_agent.policy import Finish, Policy, PolicyUnavailableError, Session
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import render_last_turn, render_repeated
from scout_protocol.records import Author, RLRow, Span, StopReason, ToolCall, Trace
from scout_protocol.turn import Action, parse


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """The budget of one trajectory.

    ``max_turns`` counts policy turns: with 4, at most three searches and then an answer. Token limits
    apply to policies that count tokens; ``max_response_tokens`` covers policy and tool tokens together.

    ``force_answer``: before the last turn the tool says that it is the last and that an answer is due; the
    text is the tool's, so it carries no loss. ``max_same_searches``: how often a trajectory may run one query
    (case and spaces aside); one more is answered by a note instead of the tool. 0: as often as it likes.
    """

    dialect: str = "search-r1"
    max_turns: int = 4
    max_turn_tokens: int = 256
    max_response_tokens: int = 2048
    max_obs_tokens: int = 512
    turn_timeout_s: float = 60.0
    trajectory_timeout_s: float = 300.0
    force_answer: bool = False
    max_same_searches: int = 0

    def __post_init__(self) -> None:
        get_dialect(self.dialect)
        if self.max_same_searches < 0:
            raise UserError("max_same_searches", self.max_same_searches, "must be at least 0 (0: no limit)")
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
    queries: Counter[str] = field(default_factory=Counter)
    n_cut_searches: int = 0
    answer_was_forced: bool = False
    calling: tuple[str, float] | None = None  # query and start of the tool call in flight


async def run_episode(
    row: RLRow, policy: Policy, tools: Tools, settings: EpisodeSettings, labels: TraceLabels
) -> Trace:
    """Play one question to its end and return the trajectory, not yet scored.

    Outages of the tool, or of the policy's own endpoint, end the trajectory with
    `StopReason.INFRA_ERROR`; they never become text. So does a deadline that passes while a tool call hangs,
    if waiting for tools took more than half of the time: that says nothing about the policy either.
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
        if progress.calling is not None:
            query, since = progress.calling
            hung_s = time.perf_counter() - since
            if hung_s + sum(c.latency_s for c in progress.calls) > settings.trajectory_timeout_s / 2:
                stop = StopReason.INFRA_ERROR
                progress.calls.append(ToolCall(query, hung_s, False, True, "deadline"))
    except PolicyUnavailableError as error:
        stop, progress.policy_error = StopReason.INFRA_ERROR, error.kind
    return _trace(row, settings, labels, trace_id, progress, stop, time.perf_counter() - start)


async def _play(
    session: Session, tools: Tools, settings: EpisodeSettings, trace_id: str, progress: _Progress
) -> StopReason:
    dialect = get_dialect(settings.dialect)
    used_tokens = 0

    def show(text: str, limit: int) -> bool:
        """Append tool text of at most ``limit`` tokens; False if not even its frame has room."""
        nonlocal used_tokens
        room = settings.max_response_tokens - used_tokens
        try:
            span = session.observe(text, min(limit, room))
        except UserError:
            if room >= limit:
                raise  # the setting itself is too small: the user must hear of it
            return False
        progress.spans.append(span)
        used_tokens += len(span.token_ids or ())
        return True

    while True:
        if settings.force_answer and progress.n_turns == settings.max_turns - 1:
            progress.answer_was_forced = True
            if not show(render_last_turn(dialect), settings.max_response_tokens):
                return StopReason.LENGTH
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
        if parsed.action is Action.SEARCH and _is_repeated(parsed.text, settings, progress):
            progress.n_cut_searches += 1
            if not show(render_repeated(dialect), settings.max_obs_tokens):
                return StopReason.LENGTH
            continue
        if parsed.action is Action.SEARCH:
            progress.n_searches += 1

        progress.calling = (parsed.text, time.perf_counter())
        reply = await tools.call(trace_id, turn.text[: parsed.end])
        progress.calling = None
        progress.calls.append(
            ToolCall(
                parsed.text, reply.latency_s, reply.valid, reply.infra_error, reply.error_kind, reply.cache
            )
        )
        if reply.infra_error:
            return StopReason.INFRA_ERROR
        if not show(reply.observation, settings.max_obs_tokens):
            return StopReason.LENGTH


def _is_repeated(query: str, settings: EpisodeSettings, progress: _Progress) -> bool:
    """Whether this trajectory has run the query as often as it may; counts it."""
    key = " ".join(query.casefold().split())
    progress.queries[key] += 1
    return 0 < settings.max_same_searches < progress.queries[key]


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
    if progress.n_cut_searches:
        extra["cut_searches"] = progress.n_cut_searches
    if progress.answer_was_forced:
        extra["forced_answer"] = True
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
