"""The seven sets from files: FlashRAG's copies, Search-R1's parquet, or what the authors published."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from scout_data.files import read_json_lines, require_file
from scout_data.readers import READERS, Question, detect_format
from scout_eval.benchmarks import HUB_REPO, Benchmark
from scout_protocol.errors import UserError

csv.field_size_limit(1 << 24)


def read_flashrag(path: Path) -> Iterator[Question]:
    """FlashRAG: ``{"id", "question", "golden_answers", "metadata"}``, one a line."""
    for number, item in read_json_lines(path):
        meta = item.get("metadata") or {}
        facts = meta.get("supporting_facts") or {}
        titles = facts.get("title") if isinstance(facts, dict) else None
        extra = {"source_id": item.get("id"), "type": meta.get("type"), "level": meta.get("level")}
        yield _question(path, f"line {number}", item, "golden_answers", extra, titles)


def read_musique(path: Path) -> Iterator[Question]:
    """MuSiQue's own file: answer with aliases, paragraphs marked as supporting; "2hop__…" in the id."""
    for number, item in read_json_lines(path):
        if item.get("answerable") is False:
            continue
        source_id = str(item.get("id", ""))
        hops = int(source_id[0]) if source_id[1:4] == "hop" and source_id[0].isdigit() else None
        titles = [p["title"] for p in item.get("paragraphs") or () if p.get("is_supporting")]
        answers = [item.get("answer"), *(item.get("answer_aliases") or ())]
        extra = {"source_id": source_id, "hops": hops}
        yield _question(path, f"line {number}", {**item, "answers": answers}, "answers", extra, titles)


def read_triviaqa(path: Path) -> Iterator[Question]:
    """TriviaQA's own file: one object whose ``Data`` lists questions with ``Answer.Aliases``."""
    try:
        data = json.loads(require_file(path).read_bytes())["Data"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(str(path), error, "is no TriviaQA file: it needs an object with Data") from error
    for index, item in enumerate(data):
        answer = item.get("Answer") or {}
        answers = list(dict.fromkeys([answer.get("Value"), *(answer.get("Aliases") or ())]))
        flat = {"question": item.get("Question"), "answers": [a for a in answers if a]}
        yield _question(path, f"row {index}", flat, "answers", {"source_id": item.get("QuestionId")})


def read_popqa(path: Path) -> Iterator[Question]:
    """PopQA's own file: tab-separated, ``possible_answers`` is a JSON list."""
    for index, item in enumerate(_table(path, "\t")):
        try:
            answers = json.loads(item.get("possible_answers") or "null")
        except ValueError as error:
            raise UserError(f"{path}: row {index}, column possible_answers", error, "must be JSON") from error
        flat = {"question": item.get("question"), "answers": answers}
        yield _question(
            path, f"row {index}", flat, "answers", {"source_id": item.get("id"), "type": item.get("prop")}
        )


def read_bamboogle(path: Path) -> Iterator[Question]:
    """Bamboogle's own file: comma-separated, ``Question`` and ``Answer``."""
    for index, item in enumerate(_table(path, ",")):
        flat = {"question": item.get("Question"), "answers": [item.get("Answer")]}
        yield _question(path, f"row {index}", flat, "answers", {})


SUITE_READERS: dict[str, Callable[[Path], Iterator[Question]]] = {
    "flashrag": read_flashrag,
    "musique": read_musique,
    "triviaqa": read_triviaqa,
    "popqa": read_popqa,
    "bamboogle": read_bamboogle,
}


def suite_format(path: Path) -> str:
    """The shape of a file, by its name's end and its first line.

    Raises:
        UserError: no shape that is known.
    """
    source = require_file(path)
    if source.suffix in (".tsv", ".csv"):
        return "popqa" if source.suffix == ".tsv" else "bamboogle"
    with source.open("rb") as file:
        head = file.read(4096).lstrip()
    if head.startswith(b"{") and b'"Data"' in head[:4096] and b'"golden_answers"' not in head:
        return "triviaqa"
    if head.startswith(b"{"):
        _, first = next(read_json_lines(source))
        keys = set(first) if isinstance(first, dict) else set()
        if {"question", "golden_answers"} <= keys:
            return "flashrag"
        if {"question", "paragraphs", "answer"} <= keys:
            return "musique"
    return detect_format(source)


def read_benchmark(benchmark: Benchmark, path: Path, format_name: str = "auto") -> list[Question]:
    """The questions of one set in a file; a parquet of several sets gives this set's alone.

    Raises:
        UserError: one line naming file, row and column; or the file has none of the set's questions.
    """
    name = suite_format(path) if format_name == "auto" else format_name
    if name not in SUITE_READERS and name not in READERS:
        raise UserError("format", name, f"choose one of auto, {', '.join((*SUITE_READERS, *READERS))}")
    found = list(SUITE_READERS[name](path) if name in SUITE_READERS else READERS[name](path))
    if name == "search-r1":
        sources = sorted({q.data_source for q in found})
        found = [q for q in found if q.data_source == benchmark.data_source]
        if not found:
            raise UserError(
                f"{path}: column data_source", ", ".join(sources), f"has no {benchmark.data_source} question"
            )
    return found


def hub_file(benchmark: Benchmark, revision: str | None = None) -> Path:
    """The set's file from the Hugging Face hub, through its own cache; $HF_ENDPOINT names a mirror.

    Raises:
        UserError: the hub cannot be reached, or has no such file.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(HUB_REPO, benchmark.hub_file, repo_type="dataset", revision=revision))
    except Exception as error:  # the hub's client lets requests', its own and the OS's errors through
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"hub {HUB_REPO}/{benchmark.hub_file}", first, "fetch the file elsewhere and name it with --input"
        ) from error


def _table(path: Path, delimiter: str) -> Iterator[dict[str, Any]]:
    with require_file(path).open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file, delimiter=delimiter)


def _question(
    path: Path, where: str, item: dict[str, Any], column: str, extra: dict[str, Any], titles: Any = None
) -> Question:
    from scout_data.rows import check_answers

    text = item.get("question")
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{path}: {where}, column question", repr(text), "must not be empty")
    answers = check_answers(item.get(column), f"{path}: {where}, column {column}")
    facts = {key: value for key, value in extra.items() if value not in (None, "")}
    if titles:
        facts["supporting_titles"] = list(dict.fromkeys(map(str, titles)))
    return Question(f"{path}: {where}", text, list(dict.fromkeys(answers)), "", facts)
