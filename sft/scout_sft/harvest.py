"""`scout sft harvest`: demonstrations from the real tool server, by a row's own plan or by a strategy.

Every finished question is one JSON line in ``OUT.jsonl``, so a kill loses nothing; when all questions are
finished the kept ones become the parquet file. An outage is not a result: such a question is tried again,
and if the server stays away the command ends with what it has and says how to go on.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episodes
from scout_agent.factory import PolicyOptions, check_spec, open_policy
from scout_agent.policy import Policy
from scout_agent.tool_access import check_token, token_from_env
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import neutralise
from scout_protocol.records import Author, RLRow, SFTRow, SFTTurn, StopReason, Trace
from scout_protocol.turn import Action, parse
from scout_reward.exact_match import exact_match
from scout_sft.journal import Finished, Journal
from scout_sft.plan import PlannedTurn, PlanPolicy, choose_stops, plan, unit_interval
from scout_sft.progress import Progress
from scout_sft.rows import write_demos
from scout_sft.strategies import (
    MOST_SEARCHES,
    PLAN,
    POLICY,
    assign,
    context_found,
    queries,
    reveals_answer,
    spread,
    turns_for,
)

_LIMITS = ("max_turns", "max_turn_tokens", "max_response_tokens", "max_obs_tokens")


@dataclass(frozen=True, slots=True)
class HarvestSettings:
    """What a user chooses.

    ``early_stop_share``: of the demonstrations that could go on after a search, the share that answers there,
    too early, with what that search yields. ``keep_unfound``: keep those whose answer no result holds.
    ``strategies``: shares of `strategies.STRATEGIES`. ``searches``: fewest and most searches of a ``bridge``
    demonstration. ``max_revealing_share``: most of the kept ones that may put the answer into a query before
    a result had it. ``policy``, ``samples``, ``temperature`` and the limits of an episode are of the
    strategy ``policy``; give it those that its model was trained with.
    """

    server: str = "http://127.0.0.1:5000"
    tools_token_env: str = ""  # variable with the tool server's bearer token
    dialect: str = "search-r1"
    strategies: tuple[tuple[str, float], ...] = ((PLAN, 1.0),)
    searches: tuple[int, int] | None = None
    max_revealing_share: float = 0.2
    policy: str = ""
    samples: int = 4
    temperature: float = 1.0
    max_turns: int = 6
    max_turn_tokens: int = 256
    max_response_tokens: int = 2048
    max_obs_tokens: int = 512
    early_stop_share: float = 0.6
    keep_unfound: bool = False
    seed: int = 0
    concurrency: int = 64
    call_timeout_s: float = 30.0
    retries: int = 3
    retry_wait_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.early_stop_share <= 1:
            raise UserError("--early-stop-share", self.early_stop_share, "must be between 0 and 1")
        if not 0 <= self.max_revealing_share <= 1:
            raise UserError("--max-revealing-share", self.max_revealing_share, "must be between 0 and 1")
        if self.searches and not 1 <= self.searches[0] <= self.searches[1] <= MOST_SEARCHES:
            told = f"{self.searches[0]}-{self.searches[1]}"
            raise UserError("--searches", told, f"must ascend from 1 to {MOST_SEARCHES} at most")
        for name in ("concurrency", "call_timeout_s", "retry_wait_s", "samples", *_LIMITS):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')}", getattr(self, name), "must be greater than 0")
        if (self.strategies[0][0] == POLICY) != bool(self.policy):
            raise UserError("--policy", repr(self.policy), f"goes with --strategy {POLICY}, and only with it")
        if self.retries < 0:
            raise UserError("--retries", self.retries, "must not be negative")
        get_dialect(self.dialect)


# Nothing that the plan did: the tool was away, or too slow.
AGAIN = frozenset({StopReason.INFRA_ERROR, StopReason.TURN_TIMEOUT, StopReason.TRAJECTORY_TIMEOUT})


@dataclass(frozen=True, slots=True)
class HarvestResult:
    """Counts of a finished harvest. ``by_strategy``: questions played, with the answer in context, kept."""

    kept: int
    early: int
    rejected: dict[str, int]
    searches: dict[int, int]
    played: int
    resumed: int
    by_strategy: dict[str, dict[str, int]]
    revealing: int


def demo_from_trace(
    row: RLRow, trace: Trace, turns: Sequence[PlannedTurn], complete: bool, dialect: Dialect
) -> SFTRow:
    """A demonstration from a played trajectory, checked against the plan that it was played from.

    Raises:
        ValueError: the trajectory is not the plan: its text is the reason.
    """
    if trace.stop_reason is not StopReason.ANSWER:
        raise ValueError(f"stopped: {trace.stop_reason.value}")
    spans = trace.spans[1:]
    policy = [span for span in spans if span.author is Author.POLICY]
    if len(policy) != len(turns) or len(spans) != 2 * len(turns) - 1:
        raise ValueError("turns missing")
    if not all(call.valid for call in trace.tool_calls):
        raise ValueError("search refused by the tool")
    for span, meant in zip(policy, turns, strict=True):
        parsed = parse(span.text, dialect)
        if (parsed.action, parsed.text, parsed.think) != (meant.action, meant.content, meant.think):
            raise ValueError("does not parse back")
        if parsed.end != len(span.text):
            raise ValueError("text after the action")
    seen = _plain("\n".join(span.text for span in spans if span.author is Author.TOOL))
    demo_turns = [
        SFTTurn("policy", span.text, True)
        if span.author is Author.POLICY
        else SFTTurn("tool", span.text, False)
        for span in spans
    ]
    chosen = "".join(turn.text for turn in demo_turns)
    return SFTRow(
        messages=[*row.prompt, {"role": "assistant", "content": chosen}],
        chosen=chosen,
        question=row.question,
        golden_answers=list(row.golden_answers),
        found_answer_context=_plain(turns[-1].content) in seen,
        turns=demo_turns,
        data_source=row.data_source,
        id=row.id,
        n_searches=sum(turn.action is Action.SEARCH for turn in turns),
        complete=complete,
    )


def _plain(text: str) -> str:
    """Lower case, single spaces, markers inert as in an observation."""
    return " ".join(neutralise(text).casefold().split())


def harvest(rows: Sequence[RLRow], out: Path, settings: HarvestSettings) -> HarvestResult:
    """Play every row that has a plan and write the demonstrations to ``out`` (parquet), in the rows' order.

    Raises:
        UserError: no row has a plan, ids repeat, the harvest file belongs to another harvest or is damaged,
            the server is not there or goes away and stays away, nothing was kept.
    """
    repeated = [row_id for row_id, n in Counter(row.id for row in rows).items() if n > 1]
    if repeated:
        raise UserError(
            "--rows", f"id {repeated[0]}", f"occurs more than once (so do {len(repeated) - 1} others)"
        )
    chosen = assign(rows, dict(settings.strategies), settings.seed)
    player = _sampled(rows, settings) if settings.policy else _planned(rows, chosen, settings)
    planned = player.rows
    journal = Journal(out.with_name(out.name + ".jsonl"), _fingerprint(planned, settings))
    resumed = len(journal.finished)
    with journal:
        asyncio.run(_play(player, journal, settings))
    finished = [journal.finished[row.id] for row in planned]
    rejected = Counter(item.rejected for item in finished if item.row is None)
    kept, revealing = _capped([item.row for item in finished if item.row is not None], settings)
    if revealing:
        rejected["query reveals the answer (--max-revealing-share)"] = revealing
    if not kept:
        reasons = ", ".join(f"{reason}: {n}" for reason, n in rejected.most_common())
        raise UserError("demonstrations", "none kept", f"all {len(finished)} were rejected ({reasons})")
    write_demos(out, kept)
    return HarvestResult(
        kept=len(kept),
        early=sum(not row.complete for row in kept),
        rejected=dict(rejected),
        searches=dict(sorted(Counter(row.n_searches for row in kept).items())),
        played=len(finished) - resumed,
        resumed=resumed,
        by_strategy=_by_strategy(rows, chosen, journal, kept),
        revealing=sum(row.query_reveals_answer for row in kept),
    )


@dataclass(frozen=True, slots=True)
class Player:
    """Who plays which rows, and what becomes of a trajectory; None asks for another one."""

    rows: list[RLRow]
    open: Callable[[], AbstractAsyncContextManager[Policy]]
    budget: EpisodeSettings
    finish: Callable[[RLRow, Trace], Finished | None]


def _planned(rows: Sequence[RLRow], chosen: dict[str, str], settings: HarvestSettings) -> Player:
    """Rows that are played by a plan, their own or a strategy's."""
    dialect = get_dialect(settings.dialect)
    own = [row for row in rows if chosen[row.id] == PLAN and row.extra_info.get("oracle")]
    stops = choose_stops(own, settings.early_stop_share, settings.seed)
    plans = {row.id: plan(row, stops.get(row.id)) for row in own}
    plans |= {row.id: _asked(row, chosen[row.id], settings) for row in rows if chosen[row.id] != PLAN}
    planned = [row for row in rows if plans.get(row.id)]
    if not planned:
        wanted = ", ".join(name for name, _ in settings.strategies)
        remedy = "none has extra_info.oracle: make them with `scout world`, or choose another --strategy"
        if wanted != PLAN:
            remedy = f"none can be played by {wanted}: bridge needs supporting_titles, plan an oracle"
        raise UserError("--rows", f"{len(rows)} rows", remedy)

    def finish(row: RLRow, trace: Trace) -> Finished:
        return _finish(row, trace, plans[row.id], row.id in stops, dialect, settings, chosen[row.id])

    policy = PlanPolicy(plans, settings.dialect)
    longest = max(len(turns) for turns in plans.values())
    budget = EpisodeSettings(dialect=settings.dialect, max_turns=longest)
    return Player(planned, lambda: nullcontext(policy), budget, finish)


def _sampled(rows: Sequence[RLRow], settings: HarvestSettings) -> Player:
    """Rejection sampling: any policy plays, and what is right, well formed and founded is kept."""
    dialect = get_dialect(settings.dialect)
    check_spec(settings.policy)
    tries: Counter[str] = Counter()

    def finish(row: RLRow, trace: Trace) -> Finished | None:
        tries[row.id] += 1
        parsed = [parse(s.text, dialect) for s in trace.spans if s.author is Author.POLICY]
        turns = [PlannedTurn(turn.think or "", turn.action, turn.text) for turn in parsed]
        item = _finish(row, trace, turns, False, dialect, settings, POLICY)
        if item.row is not None and not exact_match(turns[-1].content, row.golden_answers):
            item = Finished(row.id, rejected="wrong answer", in_context=item.in_context)
        return item if item.row is not None or tries[row.id] >= settings.samples else None

    options = PolicyOptions(temperature=settings.temperature)
    return Player(
        list(rows),
        lambda: open_policy(settings.policy, settings.dialect, settings.seed, options),
        EpisodeSettings(settings.dialect, **{name: getattr(settings, name) for name in _LIMITS}),
        finish,
    )


def _asked(row: RLRow, strategy: str, settings: HarvestSettings) -> list[PlannedTurn]:
    searches = spread(row.id, *settings.searches, settings.seed) if settings.searches else None
    return turns_for(row, queries(row, strategy, searches))


def _capped(kept: list[SFTRow], settings: HarvestSettings) -> tuple[list[SFTRow], int]:
    """Those with at most the allowed share that reveals, and how many went; by ids and seed alone."""
    revealing = [row.id for row in kept if row.query_reveals_answer]
    share = settings.max_revealing_share
    honest = len(kept) - len(revealing)
    room = len(revealing) if share >= 1 else int(share * honest / (1 - share) + 1e-9)
    revealing.sort(key=lambda row_id: unit_interval(settings.seed, "revealing", row_id))
    gone = set(revealing[room:])
    return [row for row in kept if row.id not in gone], len(gone)


def _by_strategy(
    rows: Sequence[RLRow], chosen: dict[str, str], journal: Journal, kept: Sequence[SFTRow]
) -> dict[str, dict[str, int]]:
    facts: dict[str, Counter[str]] = {}
    left = {row.id for row in kept}
    for row in rows:
        counts = facts.setdefault(chosen[row.id], Counter({"questions": 0, "in context": 0, "kept": 0}))
        item = journal.finished.get(row.id)
        counts["questions"] += 1
        counts["in context"] += item is not None and item.in_context
        counts["kept"] += row.id in left
    return {name: dict(counts) for name, counts in facts.items()}


async def _play(player: Player, journal: Journal, settings: HarvestSettings) -> None:
    """Play what is not finished, round after round, until all is or the server stays away."""
    rows, token = player.rows, token_from_env(settings.tools_token_env)
    check_token(settings.server, token)
    failures_in_a_row, wait_s = 0, settings.retry_wait_s
    with Progress("demonstrations", len(rows), len(journal.finished)) as progress:
        async with (
            HttpTools(settings.server, settings.call_timeout_s, settings.concurrency, token) as tools,
            player.open() as policy,
        ):
            labels = TraceLabels(model=policy.name, stage="harvest")
            while pending := [row for row in rows if row.id not in journal.finished]:
                before, lost, kind = len(journal.finished), 0, ""
                # run_episodes is an async generator: closing it cancels the episodes in flight
                episodes = cast(
                    "AsyncGenerator[tuple[int, Trace], None]",
                    run_episodes(pending, policy, tools, player.budget, labels, settings.concurrency),
                )
                async for index, trace in episodes:
                    row = pending[index]
                    if trace.stop_reason in AGAIN:
                        lost += 1
                        kind = (
                            trace.tool_calls[-1].error_kind if trace.tool_calls else trace.stop_reason.value
                        )
                        if lost > settings.concurrency and lost > len(journal.finished) - before:
                            break  # the server is gone; asking it all the other questions helps nobody
                        continue
                    item = player.finish(row, trace)
                    if item is None:
                        continue
                    journal.add(item)
                    progress.update(len(journal.finished), f"{lost} to try again" if lost else "")
                await episodes.aclose()
                if not lost:
                    continue
                failures_in_a_row = 0 if len(journal.finished) > before else failures_in_a_row + 1
                if failures_in_a_row > settings.retries:
                    done, left = len(journal.finished), len(rows) - len(journal.finished)
                    raise UserError(
                        "--server",
                        f"{settings.server} ({kind})",
                        f"does not answer: {done} questions are finished and kept, {left} are not; "
                        "start it with `scout serve` and run the same command to go on",
                    )
                await asyncio.sleep(wait_s * 2**failures_in_a_row if failures_in_a_row else wait_s)


def _finish(
    row: RLRow,
    trace: Trace,
    turns: Sequence[PlannedTurn],
    stops_early: bool,
    dialect: Dialect,
    settings: HarvestSettings,
    strategy: str,
) -> Finished:
    try:
        demo = demo_from_trace(row, trace, turns, not stops_early, dialect)
    except ValueError as error:
        return Finished(row.id, rejected=str(error))
    demo.strategy = strategy
    demo.query_reveals_answer = reveals_answer(row, trace.spans, [turn.content for turn in turns[:-1]])
    if strategy != PLAN:  # a plan's answer may be an early one, which is not the golden one
        demo.found_answer_context = context_found(row, trace.spans)
    if not demo.found_answer_context and not settings.keep_unfound:
        # It would teach to answer what no page said.
        return Finished(row.id, rejected="answer not in the results")
    return Finished(row.id, row=demo, in_context=demo.found_answer_context)


def _fingerprint(rows: Sequence[RLRow], settings: HarvestSettings) -> dict[str, Any]:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            msgspec.json.encode([row.id, row.prompt, row.golden_answers, row.extra_info.get("oracle")])
        )
    mark: dict[str, Any] = {
        "rows": digest.hexdigest(),
        "dialect": settings.dialect,
        "early_stop_share": settings.early_stop_share,
        "keep_unfound": settings.keep_unfound,
        "seed": settings.seed,
    }
    if settings.policy:
        names = ("policy", "samples", "temperature", *_LIMITS)
        mark |= {name: getattr(settings, name) for name in names}
    if settings.strategies != ((PLAN, 1.0),) or settings.searches:  # as before where only plans are played
        mark |= {
            "strategies": [[name, share] for name, share in settings.strategies],
            "searches": list(settings.searches or ()),
        }
    return mark
