"""Published question files -> questions. One reader per file shape, all with the same result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scout_data.files import convert, read_json_array, read_json_lines, require_file
from scout_data.rows import check_answers, check_target, make_row, read_parquet, read_rows
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow

KEEP = "keep"  # in place of a prompt's name


class Question(msgspec.Struct):
    """A question as its source has it. ``where`` names file and row for messages."""

    where: str
    text: str
    golden_answers: list[str]
    data_source: str
    extra: dict[str, Any]


class _Hotpot(msgspec.Struct):
    """Official HotpotQA (train, dev distractor, dev fullwiki): Yang et al. 2018."""

    question: str
    answer: str
    id: str = msgspec.field(name="_id", default="")
    type: str | None = None
    level: str | None = None
    supporting_facts: list[tuple[str, int]] = []


class _Date(msgspec.Struct):
    day: str = ""
    month: str = ""
    year: str = ""


class _AnswerObject(msgspec.Struct):
    """DROP's answer object: exactly one of the three is filled."""

    spans: list[str] = []
    number: str = ""
    date: _Date = msgspec.field(default_factory=_Date)


class _Context(msgspec.Struct):
    title: str
    is_supporting: bool = False


class _HotpotContexts(msgspec.Struct):
    """IRCoT's processed HotpotQA (Trivedi et al. 2023): one JSON object a line."""

    question_text: str
    answers_objects: list[_AnswerObject]
    contexts: list[_Context]
    question_id: str = ""


class _NQOpen(msgspec.Struct):
    question: str
    answer: list[str]


class _QA(msgspec.Struct):
    """A plain question: the answer as one string or several, under the names in use."""

    question: str
    answer: str | list[str] | None = None
    answers: list[str] | None = None
    golden_answers: list[str] | None = None
    id: str | int | None = None
    data_source: str | None = None
    type: str | None = None
    level: str | None = None
    hops: int | None = None
    facts: list[str] | None = None
    supporting_titles: list[str] | None = None


class _Link(msgspec.Struct):
    """One look-up of a chain."""

    query: str
    result: str | None = None
    think: str | None = None


class _LongChain(_QA, kw_only=True):
    """An internal long-chain question: the look-ups that answer it, in order, so that they can be shown."""

    chain: list[_Link]


def read_hotpotqa(path: str | os.PathLike[str]) -> Iterator[Question]:
    """Official HotpotQA JSON: an array of questions with ``supporting_facts``."""
    for index, item in enumerate(read_json_array(path)):
        where = f"{path}: row {index}"
        row = convert(item, _Hotpot, where)
        titles = _unique([title for title, _ in row.supporting_facts])
        extra = {"source_id": row.id, "type": row.type, "level": row.level, "supporting_titles": titles}
        yield _question(where, row.question, [row.answer], "answer", "hotpotqa", extra)


def read_hotpot_contexts(path: str | os.PathLike[str]) -> Iterator[Question]:
    """HotpotQA with paragraphs marked ``is_supporting``, one question a line."""
    for number, item in read_json_lines(path):
        where = f"{path}: line {number}"
        row = convert(item, _HotpotContexts, where)
        answers = [text for answer in row.answers_objects for text in _answer_texts(answer)]
        titles = _unique([c.title for c in row.contexts if c.is_supporting])
        extra = {"source_id": row.question_id, "supporting_titles": titles}
        yield _question(where, row.question_text, answers, "answers_objects", "hotpotqa", extra)


def read_search_r1(path: str | os.PathLike[str]) -> Iterator[Question]:
    """Search-R1's parquet. ``data_source`` is kept; the prompt is not, so that it can be chosen anew."""
    columns = ("id", "question", "golden_answers", "data_source", "reward_model")
    for index, record in enumerate(read_parquet(path, columns)):
        where = f"{path}: row {index}"
        answers = check_answers(record["golden_answers"], f"{where}, column golden_answers")
        check_target(record["reward_model"], answers, where)
        if not isinstance(record["data_source"], str) or not record["data_source"]:
            raise UserError(f"{where}, column data_source", repr(record["data_source"]), "must not be empty")
        extra = {"source_id": record["id"]}
        yield _question(where, record["question"], answers, "golden_answers", record["data_source"], extra)


def read_nq_open(path: str | os.PathLike[str]) -> Iterator[Question]:
    """NQ-open: ``{"question", "answer": [aliases]}``, one a line."""
    for number, item in read_json_lines(path):
        where = f"{path}: line {number}"
        row = convert(item, _NQOpen, where)
        yield _question(where, row.question, row.answer, "answer", "nq", {})


def read_qa(path: str | os.PathLike[str]) -> Iterator[Question]:
    """Plain JSON lines: ``question`` with ``answer``, ``answers`` or ``golden_answers``."""
    for number, item in read_json_lines(path):
        where = f"{path}: line {number}"
        yield _plain(where, convert(item, _QA, where), "qa", {})


def read_long_chain(path: str | os.PathLike[str]) -> Iterator[Question]:
    """As `read_qa`, with ``chain``: ``[{"query", "result"?, "think"?}]``, which becomes the row's plan."""
    for number, item in read_json_lines(path):
        where = f"{path}: line {number}"
        row = convert(item, _LongChain, where)
        if not row.chain or not all(link.query.strip() for link in row.chain):
            raise UserError(f"{where}, column chain", row.chain, "needs at least one link, each with a query")
        oracle = [
            {
                "think": link.think or f"I need to look up {link.query}.",
                "query": link.query,
                "result": link.result or "",
            }
            for link in row.chain
        ]
        yield _plain(where, row, "long_chain", {"oracle": oracle, "hops": row.hops or len(row.chain)})


def _plain(where: str, row: _QA, data_source: str, extra: dict[str, Any]) -> Question:
    given = {"answer": row.answer, "answers": row.answers, "golden_answers": row.golden_answers}
    named = {column: value for column, value in given.items() if value is not None}
    if len(named) != 1:
        found = ", ".join(named) or "none"
        raise UserError(f"{where}, column answer", found, f"needs exactly one of {', '.join(given)}")
    ((column, value),) = named.items()
    extra = {
        "source_id": None if row.id is None else str(row.id),
        "type": row.type,
        "level": row.level,
        "hops": row.hops,
        "facts": row.facts,
        "supporting_titles": row.supporting_titles,
    } | extra
    answers = [value] if isinstance(value, str) else value
    return _question(where, row.question, answers, column, row.data_source or data_source, extra)


READERS: dict[str, Callable[[str | os.PathLike[str]], Iterator[Question]]] = {
    "hotpotqa": read_hotpotqa,
    "hotpot-contexts": read_hotpot_contexts,
    "search-r1": read_search_r1,
    "nq-open": read_nq_open,
    "qa": read_qa,
    "long-chain": read_long_chain,
}


def detect_format(path: str | os.PathLike[str]) -> str:
    """The name in `READERS` that fits the file, judged by its first bytes and first keys.

    Raises:
        UserError: missing or empty file, or a shape that none of the readers knows.
    """
    source: Path = require_file(path)
    with source.open("rb") as file:
        head = file.read(64).lstrip()
    if head.startswith(b"PAR1") or source.suffix == ".parquet":
        return "search-r1"
    if head.startswith(b"["):
        return "hotpotqa"
    _, first = next(read_json_lines(source))
    keys = set(first) if isinstance(first, dict) else set()
    if {"question_text", "contexts"} & keys:
        return "hotpot-contexts"
    if "question" in keys and "chain" in keys:
        return "long-chain"
    if keys == {"question", "answer"} and isinstance(first["answer"], list):
        return "nq-open"
    if "question" in keys or "answer" in keys:
        return "qa"
    shown = ", ".join(sorted(keys)) or type(first).__name__
    raise UserError(
        f"{path}: line 1", shown, f"no known file shape; name it with --format {'|'.join(READERS)}"
    )


def load_rows(
    path: str | os.PathLike[str],
    format_name: str = "auto",
    prompt_name: str = "search_r1",
    split: str = "dev",
    data_source: str | None = None,
) -> list[RLRow]:
    """Every question of a published file as an RL row; ``extra_info.index`` counts the file's rows from 0.

    Args:
        prompt_name: a prompt of `scout_protocol.prompt`, or `KEEP` for the prompts, ids and ``extra_info``
            that a parquet file has already.
        data_source: in place of what the format says.

    Raises:
        UserError: one line naming file, row and column.
    """
    name = detect_format(path) if format_name == "auto" else format_name
    if name not in READERS:
        raise UserError("format", name, f"choose one of auto, {', '.join(READERS)}")
    if prompt_name == KEEP:
        if name != "search-r1":
            raise UserError(
                "prompt", KEEP, f"only parquet rows have one, and this is {name}: choose a prompt"
            )
        return read_rows(path)
    rows = []
    for index, q in enumerate(READERS[name](path)):
        source = data_source or q.data_source
        rows.append(make_row(q.text, q.golden_answers, prompt_name, source, split, index, q.extra))
    return rows


def _question(
    where: str, text: Any, answers: Any, column: str, data_source: str, extra: dict[str, Any]
) -> Question:
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where}, column question", repr(text), "must not be empty")
    answers = check_answers(answers, f"{where}, column {column}")
    return Question(
        where, text, answers, data_source, {k: v for k, v in extra.items() if v not in (None, "")}
    )


def _answer_texts(answer: _AnswerObject) -> list[str]:
    date = " ".join(part for part in (answer.date.day, answer.date.month, answer.date.year) if part)
    return list(answer.spans) or [text for text in (answer.number, date) if text]


def _unique(items: list[str]) -> list[str]:
    return list(dict.fromkeys(items))
