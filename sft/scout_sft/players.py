"""Who plays the rows of a harvest: a prepared plan, or any policy by rejection sampling."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass

from scout_agent.episode import EpisodeSettings
from scout_agent.factory import PolicyOptions, check_spec, open_policy
from scout_agent.policy import Policy
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import Author, RLRow, Trace
from scout_protocol.turn import parse
from scout_reward.exact_match import exact_match
from scout_sft.demo import judge
from scout_sft.harvest_settings import LIMITS, HarvestSettings
from scout_sft.journal import Finished
from scout_sft.plan import PlannedTurn, PlanPolicy, choose_stops, plan
from scout_sft.strategies import PLAN, POLICY, queries, spread, turns_for


@dataclass(frozen=True, slots=True)
class Player:
    """Who plays which rows, and what becomes of a trajectory; None asks for another one."""

    rows: list[RLRow]
    open: Callable[[], AbstractAsyncContextManager[Policy]]
    budget: EpisodeSettings
    finish: Callable[[RLRow, Trace], Finished | None]


def planned_player(rows: Sequence[RLRow], chosen: dict[str, str], settings: HarvestSettings) -> Player:
    """Rows that are played by a plan, their own or a strategy's.

    Raises:
        UserError: no row has a plan.
    """
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
        return judge(row, trace, plans[row.id], row.id in stops, settings, chosen[row.id])

    policy = PlanPolicy(plans, settings.dialect)
    longest = max(len(turns) for turns in plans.values())
    budget = EpisodeSettings(dialect=settings.dialect, max_turns=longest)
    return Player(planned, lambda: nullcontext(policy), budget, finish)


def sampled_player(rows: Sequence[RLRow], settings: HarvestSettings) -> Player:
    """Rejection sampling: any policy plays, and what is right, well formed and founded is kept."""
    dialect = get_dialect(settings.dialect)
    check_spec(settings.policy)
    tries: Counter[str] = Counter()

    def finish(row: RLRow, trace: Trace) -> Finished | None:
        tries[row.id] += 1
        parsed = [parse(s.text, dialect) for s in trace.spans if s.author is Author.POLICY]
        turns = [PlannedTurn(turn.think or "", turn.action, turn.text) for turn in parsed]
        item = judge(row, trace, turns, False, settings, POLICY)
        if item.row is not None and not exact_match(turns[-1].content, row.golden_answers):
            item = Finished(row.id, rejected="wrong answer", in_context=item.in_context)
        return item if item.row is not None or tries[row.id] >= settings.samples else None

    options = PolicyOptions(temperature=settings.temperature)
    return Player(
        list(rows),
        lambda: open_policy(settings.policy, settings.dialect, settings.seed, options),
        EpisodeSettings(settings.dialect, **{name: getattr(settings, name) for name in LIMITS}),
        finish,
    )


def _asked(row: RLRow, strategy: str, settings: HarvestSettings) -> list[PlannedTurn]:
    searches = spread(row.id, *settings.searches, settings.seed) if settings.searches else None
    return turns_for(row, queries(row, strategy, searches))
