"""A played trajectory as a demonstration, or the reason why it is none."""

from __future__ import annotations

from collections.abc import Sequence

from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.observation import neutralise
from scout_protocol.records import Author, RLRow, SFTRow, SFTTurn, StopReason, Trace
from scout_protocol.turn import Action, parse
from scout_sft.harvest_settings import HarvestSettings
from scout_sft.journal import Finished
from scout_sft.plan import PlannedTurn
from scout_sft.strategies import PLAN, context_found, reveals_answer


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


def judge(
    row: RLRow,
    trace: Trace,
    turns: Sequence[PlannedTurn],
    stops_early: bool,
    settings: HarvestSettings,
    strategy: str,
) -> Finished:
    """What goes into the journal for a trajectory that came to its end."""
    try:
        demo = demo_from_trace(row, trace, turns, not stops_early, get_dialect(settings.dialect))
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
