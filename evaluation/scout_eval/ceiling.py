"""The retrieval ceiling: is the answer, are the supporting titles within reach of this server at this top-k?

Asked of the tool server itself, with no policy between: once with the question as it stands, and once with
the queries of somebody who knows the plan (the row's ``oracle`` queries, or its supporting titles). A policy
that answers above the second number answers from memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from scout_agent.tool_access import check_token
from scout_eval.outcomes import FACETS, YES_NO, mentions
from scout_eval.provenance import file_sha256
from scout_eval.run import load_rows
from scout_eval.server import DEFAULT_TOPK, retrieve, server_facts, tools_alive
from scout_eval.statistics import Estimate, bootstrap
from scout_eval.summary import write_json
from scout_eval.trace_log import question_key
from scout_protocol.errors import UserError
from scout_protocol.observation import Document, neutralise
from scout_protocol.records import RLRow
from scout_reward.normalise import normalise

CEILING = "ceiling.json"
BATCH = 32  # queries in one request


class Reach(msgspec.Struct, frozen=True):
    """What the passages hold for one question; None where there is nothing to look for.

    A yes/no answer stands in any text, so it has no ``answer``; rows without plan and titles have only the
    question's own search.
    """

    facets: dict[str, str]
    n_queries: int  # of the plan
    answer_by_question: bool | None
    titles_by_question: bool | None
    answer_by_plan: bool | None
    titles_by_plan: bool | None

    @property
    def answer(self) -> bool | None:
        """The answer is found by one way or the other."""
        found = [x for x in (self.answer_by_question, self.answer_by_plan) if x is not None]
        return any(found) if found else None


class ReachGroup(msgspec.Struct):
    """Shares of the questions of one group; None where no question can be judged."""

    n: int
    answer_by_question: Estimate | None
    titles_by_question: Estimate | None
    answer_by_plan: Estimate | None
    titles_by_plan: Estimate | None


class Ceiling(msgspec.Struct):
    """The ceiling of one set of questions on one server."""

    rows_sha256: str
    topk: int
    retriever: dict[str, object]
    n_rows: int
    max_queries: int  # the longest plan; a budget of fewer searches cannot follow it
    overall: ReachGroup
    by: dict[str, dict[str, ReachGroup]]
    reach: dict[str, Reach]


def measure(
    rows_path: Path,
    url: str,
    topk: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    console: Console | None = None,
    token: str = "",
) -> Ceiling:
    """Ask the server for every question.

    Args:
        rows_path: parquet of RL rows.
        url: of the tool server.
        topk: passages per search; by default as many as the server gives to a policy.
        limit: only the first rows.
        seed: of the intervals.
        token: bearer token, where the server asks for one.

    Raises:
        UserError: unreadable rows, or a server that is not there or has no /retrieve.
    """
    tools_alive(url)
    check_token(url, token)
    facts = server_facts(url)
    topk = topk or int(facts.get("topk", DEFAULT_TOPK))
    rows = load_rows(rows_path)[:limit]
    plans = [plan_queries(row) for row in rows]
    jobs = [(i, query) for i, row in enumerate(rows) for query in (row.question, *plans[i])]
    found: list[list[list[Document]]] = [[] for _ in rows]
    with Progress(console=console or Console(stderr=True), transient=True) as progress:
        task = progress.add_task("retrieval ceiling", total=len(jobs))
        for part in _chunks(jobs, BATCH):
            answers = retrieve(url, [q for _, q in part], topk, token=token)
            for (i, _), documents in zip(part, answers, strict=True):
                found[i].append(documents)
            progress.advance(task, len(part))
    reach = {
        question_key(row.data_source, row.id): reach_of(row, documents[0], documents[1:])
        for row, documents in zip(rows, found, strict=True)
    }
    values = list(reach.values())
    by: dict[str, dict[str, ReachGroup]] = {}
    for facet in FACETS:
        for name in sorted({r.facets[facet] for r in values if facet in r.facets}):
            group = [r for r in values if r.facets.get(facet) == name]
            by.setdefault(facet, {})[name] = _group(group, seed)
    return Ceiling(
        rows_sha256=file_sha256(rows_path),
        topk=topk,
        retriever=dict(facts),
        n_rows=len(rows),
        max_queries=max(map(len, plans)),
        overall=_group(values, seed),
        by=by,
        reach=reach,
    )


def plan_queries(row: RLRow) -> list[str]:
    """What somebody would search who knows the way: the row's plan, or its supporting titles."""
    plan = row.extra_info.get("oracle") or []
    queries = [str(step["query"]) for step in plan if step.get("query")]
    return queries or list(dict.fromkeys(row.extra_info.get("supporting_titles") or ()))


def reach_of(row: RLRow, by_question: Sequence[Document], by_plan: Sequence[Sequence[Document]]) -> Reach:
    """What the passages of the question's search, and of each search of the plan, hold."""
    planned = [document for documents in by_plan for document in documents]
    return Reach(
        facets={
            key: str(v)
            for key, v in {"data_source": row.data_source, **row.extra_info}.items()
            if key in FACETS
        },
        n_queries=len(by_plan),
        answer_by_question=_has_answer(row, by_question),
        titles_by_question=_has_titles(row, by_question),
        answer_by_plan=_has_answer(row, planned) if by_plan else None,
        titles_by_plan=_has_titles(row, planned) if by_plan else None,
    )


def _has_answer(row: RLRow, documents: Sequence[Document]) -> bool | None:
    golds = [gold for gold in row.golden_answers if normalise(gold) and normalise(gold) not in YES_NO]
    if not golds:
        return None
    return any(mentions(f"{d.title}\n{d.text}", golds) for d in documents)


def _has_titles(row: RLRow, documents: Sequence[Document]) -> bool | None:
    wanted = {normalise(neutralise(title)) for title in row.extra_info.get("supporting_titles") or ()}
    if not wanted:
        return None
    return wanted <= {normalise(d.title) for d in documents}


def _group(values: Sequence[Reach], seed: int) -> ReachGroup:
    def share(name: str) -> Estimate | None:
        known = [float(v) for r in values if (v := getattr(r, name)) is not None]
        return bootstrap(known, seed) if known else None

    return ReachGroup(
        len(values),
        share("answer_by_question"),
        share("titles_by_question"),
        share("answer_by_plan"),
        share("titles_by_plan"),
    )


def _chunks(items: Sequence[tuple[int, str]], size: int) -> Iterator[Sequence[tuple[int, str]]]:
    for at in range(0, len(items), size):
        yield items[at : at + size]


def read_ceiling(folder: Path) -> Ceiling | None:
    """The ceiling stored in an evaluation's folder; None where it was not measured.

    Raises:
        UserError: it is damaged or of another version.
    """
    path = folder / CEILING
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ceiling)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(str(path), error, "is damaged: remove it and measure again with --tools") from error


def write_ceiling(folder: Path, ceiling: Ceiling) -> None:
    """Store a ceiling beside the evaluation that it belongs to."""
    write_json(folder / CEILING, ceiling)
