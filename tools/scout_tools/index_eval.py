"""How well an index finds what HotpotQA says is needed: recall of supporting titles."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.errors import UserError
from scout_tools.backends.bm25 import BM25Backend

DEPTH = 10
_NEEDS = "needs question and supporting_facts (HotpotQA's official file), or question_text and contexts"


class Question(msgspec.Struct, frozen=True):
    """A question and the titles that it takes to answer it."""

    text: str
    titles: frozenset[str]


class Quality(msgspec.Struct, frozen=True):
    """Means over questions. ``recall`` is the share of supporting titles among the best 1, 3, 5 and 10."""

    n_questions: int
    recall: dict[int, float]
    all_at_10: float  # share of questions whose titles are all among the best 10


def read_questions(path: Path) -> list[Question]:
    """Questions of an official HotpotQA file, or of JSON lines with ``contexts`` and ``is_supporting``.

    Raises:
        UserError: not readable, or a record without what is needed, naming its place.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UserError(
            "--questions", path, f"cannot be read ({error.strerror}): name a HotpotQA file"
        ) from error
    questions = []
    for where, record in _records(raw, path):
        try:
            if "contexts" in record:
                titles = {c["title"] for c in record["contexts"] if c["is_supporting"]}
                text = record["question_text"]
            else:
                titles = {title for title, _ in record["supporting_facts"]}
                text = record["question"]
        except (KeyError, TypeError, ValueError) as error:
            remedy = f"lacks {error}: {_NEEDS}"
            raise UserError("--questions", where, remedy) from error
        if not isinstance(text, str) or not text.strip() or not titles:
            raise UserError(
                "--questions", where, "an empty question, or one without supporting titles: mend or remove it"
            )
        questions.append(Question(text, frozenset(titles)))
    if not questions:
        raise UserError("--questions", path, f"holds no question: {_NEEDS}")
    return questions


def _records(raw: bytes, path: Path) -> Iterator[tuple[str, Any]]:
    try:
        if raw.lstrip().startswith(b"["):
            for number, record in enumerate(msgspec.json.decode(raw), start=1):
                yield f"{path}:item {number}", record
            return
        where = str(path)
        for number, line in enumerate(raw.splitlines(), start=1):
            where = f"{path}:{number}"
            if line.strip():
                yield where, msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            "--questions", where if b"\n" in raw else path, f"not valid JSON ({error}): {_NEEDS}"
        ) from error


def evaluate(
    backend: BM25Backend, questions: list[Question], on_question: Callable[[], None] | None = None
) -> Quality:
    """Search every question as it stands and compare the titles found with those needed."""
    recall = dict.fromkeys((1, 3, 5, DEPTH), 0.0)
    complete = 0
    for question in questions:
        (documents,) = backend.search_now([question.text], DEPTH)
        found = [document.title for document in documents]
        for k in recall:
            recall[k] += len(question.titles.intersection(found[:k])) / len(question.titles)
        complete += question.titles.issubset(found)
        if on_question is not None:
            on_question()
    n = len(questions)
    return Quality(n, {k: total / n for k, total in recall.items()}, complete / n)
