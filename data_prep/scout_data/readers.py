"""Published question files -> questions. One reader per file shape, all with the same result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scout_data.files import convert, read_json_array, read_json_lines, require_file
from scout_data.rows import check_answers, check_target, make_row, read_parquet
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow


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


READERS: dict[str, Callable[[str | os.PathLike[str]], Iterator[Question]]] = {
    "hotpotqa": read_hotpotqa,
    "hotpot-contexts": read_hotpot_contexts,
    "search-r1": read_search_r1,
    "nq-open": read_nq_open,
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
    if {"question", "answer"} & keys:
        return "nq-open"
    shown = ", ".join(sorted(keys)) or type(first).__name__
    raise UserError(
        f"{path}: line 1", shown, f"no known file shape; name it with --format {'|'.join(READERS)}"
    )


def load_rows(
    path: str | os.PathLike[str],
    format_name: str = "auto",
    prompt_name: str = "search_r1",
    split: str = "dev",
) -> list[RLRow]:
    """Every question of a published file as an RL row; ``extra_info.index`` counts the file's rows from 0.

    Raises:
        UserError: one line naming file, row and column.
    """
    name = detect_format(path) if format_name == "auto" else format_name
    if name not in READERS:
        raise UserError("format", name, f"choose one of auto, {', '.join(READERS)}")
    rows = []
    for index, q in enumerate(READERS[name](path)):
        rows.append(make_row(q.text, q.golden_answers, prompt_name, q.data_source, split, index, q.extra))
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
