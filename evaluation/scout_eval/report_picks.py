"""Which six trajectories a report shows: chosen by rule, so that nobody picks the pretty ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from scout_eval.report_data import RunData
from scout_eval.summary import TRACES
from scout_eval.trace_log import question_key, read_traces
from scout_protocol.records import StopReason, Trace

N_PICKS = 6
RULE = (
    "Chosen by rule: the question with the most searches that the last stage answers and the one after "
    "SFT does not (both sides, and the same question under both controls), the last stage's wrong answer "
    "with the most searches, and its right answer with the fewest. Ties go to the first in order of id."
)


@dataclass(frozen=True, slots=True)
class Pick:
    """A trajectory and why it is shown."""

    title: str
    trace: Trace


def pick_trajectories(run: RunData) -> list[Pick]:
    """At most `N_PICKS` trajectories of the last evaluated stage, its controls and the stage after SFT."""
    evaluated = [stage for stage in run.stages if stage.summary is not None]
    if not evaluated:
        return []
    last = evaluated[-1]
    before = next((s for s in evaluated if s.name == "sft" and s is not last), None)
    after = _read(run, last.name)
    earlier = _read(run, before.name) if before else {}
    picks: list[Pick] = []
    used: set[str] = set()

    def choose(where: Callable[[Trace], bool], most_searches: bool) -> str | None:
        fit = [key for key, trace in after.items() if key not in used and where(trace)]
        if not fit:
            return None
        return min(fit, key=lambda key: ((-1 if most_searches else 1) * after[key].n_searches, key))

    def gained(trace: Trace) -> bool:
        other = earlier.get(question_key(trace.data_source, trace.question_id))
        return right(trace) and other is not None and not right(other)

    def add(title: str, traces: dict[str, Trace], key: str) -> None:
        if key in traces and len(picks) < N_PICKS:
            picks.append(Pick(title, traces[key]))

    main = choose(gained, True) or choose(right, True) or choose(lambda _: True, True)
    if main is None:
        return []
    used.add(main)
    if before:
        add(before.label, earlier, main)
    add(f"{last.label}, the same question" if picks else last.label, after, main)
    for control, words in (("blank", "observations blanked"), ("shuffled", "retriever shuffled")):
        add(f"{last.label}, {words}", _read(run, f"{last.name}.{control}"), main)
    for title, where, most in (("a wrong answer", wrong, True), ("a right answer", right, False)):
        key = choose(where, most)
        if key is not None:
            used.add(key)
            add(f"{last.label}, {title}", after, key)
    while len(picks) < N_PICKS and (key := choose(lambda _: True, True)) is not None:
        used.add(key)
        add(f"{last.label}, another", after, key)
    return picks


def right(trace: Trace) -> bool:
    """The answer was an exact match."""
    return float(trace.score.get("em", 0.0)) == 1.0


def wrong(trace: Trace) -> bool:
    """An answer was given and it was not an exact match."""
    return trace.stop_reason is StopReason.ANSWER and not right(trace)


def _read(run: RunData, name: str) -> dict[str, Trace]:
    path: Path = run.folder / "eval" / name / TRACES
    if not path.is_file():
        return {}
    return {
        question_key(t.data_source, t.question_id): t
        for t in read_traces(path)
        if t.stop_reason is not StopReason.INFRA_ERROR
    }
