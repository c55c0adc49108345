"""Which trajectories to show: filters, and the first or a random few of what passes them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from scout_diagnosis.trace_files import Found
from scout_protocol.records import StopReason, Trace

OUTCOMES = ("right", "wrong", "infra")
WHERE = (*OUTCOMES, *(reason.value for reason in StopReason))


@dataclass(frozen=True, slots=True)
class Filters:
    """What a trajectory must be; None accepts all. ``question`` is a part of its text, or its id."""

    where: str | None = None
    step: int | None = None
    stage: str | None = None
    question: str | None = None

    def accept(self, trace: Trace) -> bool:
        """Whether the trace passes all filters."""
        return (
            (self.step is None or trace.step == self.step)
            and (self.stage is None or stage_of(trace) == self.stage)
            and (self.where is None or _is(trace, self.where))
            and (self.question is None or _asks(trace, self.question))
        )


@dataclass(slots=True)
class Seen:
    """Counts of what was read, to say what there is when nothing passes."""

    read: int = 0
    passed: int = 0
    stages: Counter[str] = field(default_factory=Counter)
    stops: Counter[str] = field(default_factory=Counter)
    steps: tuple[int, int] | None = None  # first and last

    def add(self, trace: Trace) -> None:
        """Count one trace."""
        self.read += 1
        self.stages[stage_of(trace)] += 1
        self.stops[trace.stop_reason.value] += 1
        low, high = self.steps or (trace.step, trace.step)
        self.steps = min(low, trace.step), max(high, trace.step)


def stage_of(trace: Trace) -> str:
    """The stage; of an evaluation without evidence, ``stage.control``, as its folder is called."""
    control = trace.extra.get("control")
    return f"{trace.stage}.{control}" if control else trace.stage


def exact_match(trace: Trace) -> float | None:
    """The score's part ``em``; None where the trace was not scored."""
    value = trace.score.get("em")
    return value if isinstance(value, int | float) else None


def right(trace: Trace) -> bool:
    """The answer was an exact match."""
    return exact_match(trace) == 1


def wrong(trace: Trace) -> bool:
    """An answer was given, was scored, and was not an exact match."""
    return trace.stop_reason is StopReason.ANSWER and exact_match(trace) not in (None, 1)


def met_outage(trace: Trace) -> bool:
    """The tool server or the policy's endpoint failed on the way."""
    return trace.stop_reason is StopReason.INFRA_ERROR or any(call.infra_error for call in trace.tool_calls)


def passing(source: Iterable[Found], filters: Filters, seen: Seen) -> Iterator[Found]:
    """What passes the filters, in order; ``seen`` is kept up to date."""
    for found in source:
        seen.add(found.trace)
        if filters.accept(found.trace):
            seen.passed += 1
            yield found


def sample(source: Iterable[Found], count: int, seed: int) -> list[Found]:
    """``count`` of the source, each as likely as any other, in their order; the memory holds no more.

    Algorithm R (Vitter 1985, "Random sampling with a reservoir").
    """
    rng, kept = random.Random(seed), list[tuple[int, Found]]()
    for index, found in enumerate(source):
        if index < count:
            kept.append((index, found))
        elif (place := rng.randrange(index + 1)) < count:
            kept[place] = (index, found)
    return [found for _, found in sorted(kept, key=lambda pair: pair[0])]


def _is(trace: Trace, where: str) -> bool:
    if where in OUTCOMES:
        return {"right": right, "wrong": wrong, "infra": met_outage}[where](trace)
    return trace.stop_reason.value == where


def _asks(trace: Trace, text: str) -> bool:
    return text == trace.question_id or text.casefold() in trace.question.casefold()
