"""What a demonstration says, turn by turn, and the policy that plays it in the episode loop.

`scout_agent.scripted.OraclePolicy` measures the tool; this one writes text to be imitated: it can stop a
plan early, and it leaves the spaces around queries and answers that make a name one token everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scout_agent.policy import Finish, PolicyTurn, prompt_span
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import neutralise
from scout_protocol.records import Author, RLRow, Span
from scout_protocol.turn import Action

DEFAULT_CONCLUSION = "The results hold the answer."


@dataclass(frozen=True, slots=True)
class Step:
    """One look-up: what is thought, what is searched, what the page yields, what is then concluded."""

    think: str
    query: str
    result: str | None
    conclude: str


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One turn as intended, to be compared with what the text parses to."""

    think: str
    action: Action
    content: str


def oracle_steps(row: RLRow) -> list[Step]:
    """The steps of ``extra_info["oracle"]``; empty where the row has none.

    The thought before the answer is, in this order: the step's ``conclude``, a last step without a query,
    ``extra_info["final_think"]``, a fixed sentence.

    Raises:
        UserError: the plan is not a list of objects with ``think`` and ``query``.
    """
    plan = row.extra_info.get("oracle") or []
    field = f"row {row.id}: extra_info.oracle"
    if (
        not isinstance(plan, Sequence)
        or isinstance(plan, str)
        or not all(isinstance(s, Mapping) for s in plan)
    ):
        raise UserError(field, plan, 'must be a list of {"think", "query"} objects')
    final = str(row.extra_info.get("final_think") or DEFAULT_CONCLUSION)
    if plan and not plan[-1].get("query"):
        final, plan = str(plan[-1].get("think") or final), plan[:-1]
    steps = []
    for number, step in enumerate(plan):
        if not str(step.get("query") or "").strip():
            raise UserError(field, f"step {number}", "has no query")
        steps.append(
            Step(
                think=str(step.get("think") or f"I need to look up {step['query']}."),
                query=str(step["query"]),
                result=str(step["result"]) if step.get("result") else None,
                conclude=str(step.get("conclude") or final),
            )
        )
    return steps


def plan(row: RLRow, stop_after: int | None = None) -> list[PlannedTurn]:
    """The turns that answer a row: one search per step, then the answer. Empty where there is no plan.

    Args:
        stop_after: do only that many steps and take what the last of them yields for the answer: the
            mistake that reinforcement learning is meant to find out about.

    Raises:
        UserError: the row's plan is malformed, or cannot be stopped there.
    """
    steps = oracle_steps(row)
    if not steps:
        return []
    answer: str | None = row.golden_answers[0] if row.golden_answers else None
    if stop_after is not None:
        if not 0 < stop_after < len(steps):
            raise UserError("stop_after", stop_after, f"row {row.id} has {len(steps)} steps")
        steps = steps[:stop_after]
        answer = steps[-1].result
    if not answer:
        raise UserError(
            f"row {row.id}", "no answer", "needs golden answers, and results in its plan to stop early"
        )

    def said(text: str) -> str:
        # A title with a marker in it must not break the turn.
        return neutralise(text).strip()

    turns = [PlannedTurn(said(step.think), Action.SEARCH, said(step.query)) for step in steps]
    return [*turns, PlannedTurn(said(steps[-1].conclude), Action.ANSWER, said(answer))]


def turn_text(turn: PlannedTurn, dialect: Dialect) -> str:
    """The turn as the policy is to write it."""
    tag = dialect.search if turn.action is Action.SEARCH else dialect.answer
    return f"{dialect.think.open}{turn.think}{dialect.think.close}{tag.open} {turn.content} {tag.close}"


def unit_interval(seed: int, *key: str) -> float:
    """A number in [0, 1) that depends on the seed and the key alone, not on the order of work."""
    digest = hashlib.sha256("\x1f".join([str(seed), *key]).encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose_stops(rows: Sequence[RLRow], share: float, seed: int) -> dict[str, int]:
    """Which demonstrations stop early, and after how many steps: ``{row id: stop_after}``.

    At every place where a demonstration could stop too early, exactly ``share`` (rounded) of those that got
    there do: a policy that imitates them is as likely to stop after the first of three look-ups as after the
    first of two. The choice depends on ids and seed alone, so a resumed harvest chooses the same.
    """
    depth = {row.id: oracle_steps(row) for row in rows}
    going = [row_id for row_id, steps in depth.items() if all(s.result for s in steps[:-1])]
    stops: dict[str, int] = {}
    for place in range(1, max(map(len, depth.values()), default=0)):
        going = [row_id for row_id in going if len(depth[row_id]) > place]
        going.sort(key=lambda row_id: unit_interval(seed, f"early {place}", row_id))
        chosen, going = going[: round(share * len(going))], going[round(share * len(going)) :]
        stops.update(dict.fromkeys(chosen, place))
    return stops


class PlanPolicy:
    """Plays prepared turns; one list per row id."""

    def __init__(self, plans: Mapping[str, Sequence[PlannedTurn]], dialect: str) -> None:
        self.name = "oracle-plan"
        self.plans = plans
        self.dialect = get_dialect(dialect)

    async def start(self, row: RLRow) -> PlanSession:
        """Begin a trajectory."""
        return PlanSession(row, self.plans[row.id], self.dialect)


class PlanSession:
    """One planned trajectory."""

    def __init__(self, row: RLRow, turns: Sequence[PlannedTurn], dialect: Dialect) -> None:
        self.prompt = prompt_span(row)
        self._texts = [turn_text(turn, dialect) for turn in turns]
        self._next = 0

    async def act(self, max_tokens: int) -> PolicyTurn:
        """The next planned turn; ``max_tokens`` has no meaning without tokens."""
        text = self._texts[self._next]
        self._next += 1
        return PolicyTurn(text, Finish.STOP)

    def observe(self, observation: str, max_tokens: int) -> Span:
        """Take in an observation, whole: the dataset cuts it, where there is a tokenizer."""
        return Span(Author.TOOL, observation)
