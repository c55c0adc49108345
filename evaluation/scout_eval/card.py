"""The card of one evaluation: every number with what is needed to judge it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec

from scout_agent.tool_access import token_from_env
from scout_eval.ceiling import Ceiling, ReachGroup, measure, read_ceiling, write_ceiling
from scout_eval.metrics import Metrics, by_question, check_infra, summarise
from scout_eval.outcomes import Outcome, outcome
from scout_eval.statistics import Estimate, bootstrap
from scout_eval.summary import SUMMARY, TRACES, Summary, read_summary
from scout_eval.trace_log import read_traces
from scout_protocol.errors import UserError

CARD_CONTROLS = ("blank", "shuffled", "random")


class Control(msgspec.Struct):
    """An evaluation with the evidence taken away, beside the one with it."""

    em: Estimate
    searches: float
    n: int
    still_right: float | None  # of the questions right with evidence, share right without it


class Reached(msgspec.Struct):
    """The retrieval ceiling and how the policy stands against it."""

    topk: int
    max_queries: int
    overall: ReachGroup
    by: dict[str, dict[str, ReachGroup]]
    n_within: int
    n_beyond: int
    em_within: Estimate | None  # EM on questions whose answer is within reach
    em_beyond: Estimate | None  # EM on the others: from memory


class Card(msgspec.Struct):
    """Everything on the card."""

    title: str
    model: str
    stage: str
    control: str
    fingerprint: dict[str, str]
    fingerprint_id: str
    metrics: Metrics
    controls: dict[str, Control]
    ceiling: Reached | None
    warnings: list[str]
    finished_at: str
    wall_s: float


def load_card(folder: Path, tools: str | None = None, rows: Path | None = None, token_env: str = "") -> Card:
    """The card of a finished evaluation.

    Args:
        folder: of the evaluation; controls are looked for beside it, as ``FOLDER.blank`` and so on.
        tools: a tool server; with it the retrieval ceiling is measured and stored.
        rows: the rows' file, where it is no longer where the evaluation read it.
        token_env: variable with the tool server's bearer token.

    Raises:
        UserError: not finished, damaged, more than 2 % outages, or another set of rows.
    """
    summary = read_summary(folder)
    outcomes = _outcomes(folder)
    warnings: list[str] = []
    if len(outcomes) == summary.metrics.n_trajectories:
        metrics = summarise(outcomes, summary.identity.seed)
    else:  # a later call with a smaller --limit: which traces it meant is known to the summary alone
        metrics = summary.metrics
        check_infra(metrics.n_infra_errors, metrics.n_trajectories)
        warnings.append(
            f"The folder holds {len(outcomes)} trajectories, the summary is of {metrics.n_trajectories}."
        )
    if metrics.n_infra_errors:
        warnings.append(
            f"{metrics.n_infra_errors} trajectories were ended by an outage and are in no mean; "
            "run the same command again to repeat them."
        )
    if summary.commit and summary.commit.endswith("+changes"):
        warnings.append("The evaluation ran from a checkout with uncommitted changes.")
    ceiling = _ceiling(folder, summary, tools, rows, warnings, token_env)
    facts = fingerprint(summary)
    return Card(
        title=folder.name,
        model=summary.model,
        stage=summary.identity.stage,
        control=summary.identity.control,
        fingerprint=facts,
        fingerprint_id=fingerprint_id(facts),
        metrics=metrics,
        controls=_controls(folder, summary, outcomes, warnings),
        ceiling=_reached(ceiling, outcomes, summary.identity.seed) if ceiling else None,
        warnings=warnings,
        finished_at=summary.finished_at,
        wall_s=summary.wall_s,
    )


def _outcomes(folder: Path) -> list[Outcome]:
    return [outcome(trace) for trace in read_traces(folder / TRACES)]


def fingerprint(summary: Summary) -> dict[str, str]:
    """What must be equal for two numbers to be numbers of the same thing."""
    who, where = summary.identity, summary.identity.retriever
    unknown = "not told by the server"
    budget = ", ".join(f"{name} {value}" for name, value in who.settings.items())
    return {
        "model": who.policy,
        "prompt": f"sha256 {who.prompt_sha256}" if who.prompt_sha256 else "none of Scout's",
        "questions": f"sha256 {who.rows_sha256}",
        "number of questions": ", ".join(
            f"{name} {group.n}" for name, group in summary.metrics.by.get("data_source", {}).items()
        ),
        "retriever": str(where.get("backend", unknown)),
        "corpus and index": str(where.get("fingerprint", unknown)),
        "top-k": str(where.get("topk", unknown)),
        "observation style": str(where.get("style", unknown)),
        "budget": budget,
        "reward": reward_text(who.reward),
        "control": who.control,
        "seed": str(who.seed),
        "temperature": f"{who.temperature:g}",
        "samples": str(who.samples),
        "batch size": "–" if who.batch_size is None else str(who.batch_size),
        "commit": summary.commit or "unknown",
        "versions": ", ".join(f"{name} {version}" for name, version in summary.versions.items()),
    }


def reward_text(settings: dict[str, Any]) -> str:
    """The reward's settings in one line, e.g. ``defaults, but step_penalty 0.02``."""
    changed = ", ".join(f"{name} {value}" for name, value in settings.items())
    return f"defaults, but {changed}" if changed else "defaults (wrong 0.1, right 1.0, no shaping)"


def fingerprint_id(facts: dict[str, str]) -> str:
    """Twelve hex digits of all facts: the same digits, the same conditions."""
    text = "\0".join(f"{name}\0{value}" for name, value in sorted(facts.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _controls(
    folder: Path, summary: Summary, outcomes: list[Outcome], warnings: list[str]
) -> dict[str, Control]:
    if summary.identity.control != "none":
        return {}
    right = {q: sum(o.em for o in found) / len(found) for q, found in by_question(outcomes).items()}
    controls: dict[str, Control] = {}
    for name in CARD_CONTROLS:
        beside = folder.with_name(f"{folder.name}.{name}")
        if not (beside / SUMMARY).is_file():
            continue
        other = read_summary(beside)
        theirs = msgspec.structs.replace(
            other.identity, control="none", stage=summary.identity.stage, retriever={}
        )
        ours = msgspec.structs.replace(summary.identity, retriever={})
        if theirs != ours:
            different = [f for f in ours.__struct_fields__ if getattr(ours, f) != getattr(theirs, f)]
            warnings.append(f"Control {name} ran with another {', '.join(different)}: it does not compare.")
        without = by_question(_outcomes(beside))
        both = [
            sum(o.em for o in without[q]) / len(without[q])
            for q, em in right.items()
            if em == 1 and q in without
        ]
        overall = other.metrics.overall
        controls[name] = Control(
            overall.em, overall.searches, overall.n, sum(both) / len(both) if both else None
        )
    return controls


def _ceiling(
    folder: Path, summary: Summary, tools: str | None, rows: Path | None, warnings: list[str], token_env: str
) -> Ceiling | None:
    found = read_ceiling(folder)
    if tools:
        path = rows or Path(summary.rows)
        found = measure(
            path, tools, limit=summary.n_rows, seed=summary.identity.seed, token=token_from_env(token_env)
        )
        if found.rows_sha256 != summary.identity.rows_sha256:
            raise UserError("rows", path, "is not the file that was evaluated: name it with --rows")
        write_ceiling(folder, found)
    elif found and found.rows_sha256 != summary.identity.rows_sha256:
        warnings.append("The retrieval ceiling is that of other rows and was left out.")
        return None
    if found:
        for name, value in summary.identity.retriever.items():
            if found.retriever.get(name) != value:
                warnings.append(
                    f"The retrieval ceiling was measured with {name} {found.retriever.get(name)}, "
                    f"the evaluation ran with {value}."
                )
    return found


def _reached(ceiling: Ceiling, outcomes: list[Outcome], seed: int) -> Reached:
    within: list[float] = []
    beyond: list[float] = []
    for question, found in by_question(outcomes).items():
        reach = ceiling.reach.get(question)
        if reach is not None and reach.answer is not None:
            (within if reach.answer else beyond).append(sum(o.em for o in found) / len(found))
    return Reached(
        ceiling.topk,
        ceiling.max_queries,
        ceiling.overall,
        ceiling.by,
        len(within),
        len(beyond),
        bootstrap(within, seed) if within else None,
        bootstrap(beyond, seed) if beyond else None,
    )
