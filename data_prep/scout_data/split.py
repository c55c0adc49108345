"""Train and validation rows from one file, such that no question is in both."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scout_data.order import largest_remainder
from scout_protocol.errors import UserError
from scout_protocol.normalise import normalise


@dataclass(frozen=True, slots=True)
class Parts:
    """Row numbers of each part, in the file's order."""

    train: list[int]
    val: list[int]
    groups: int  # different questions


def question_key(question: str) -> str:
    """What makes two questions the same: their normalised text, or the text where nothing is left of it."""
    return normalise(question) or question.strip()


def split(
    questions: Sequence[str], sources: Sequence[str], val_share: float, seed: int, val_rows: int | None = None
) -> Parts:
    """Draw whole groups of equal questions for validation, from every source in proportion.

    The count is exact wherever groups of one row are enough to fill it up: 169,615 rows at a share of 0.1
    give 16,962 (rounded up) and 152,653.

    Raises:
        UserError: a share outside (0, 1), or one that leaves a part empty.
    """
    if val_rows is None and not 0 < val_share < 1:
        raise UserError("--val-share", val_share, "must be between 0 and 1")
    total = len(questions)
    wanted = math.ceil(total * val_share - 1e-9) if val_rows is None else val_rows
    if not 0 < wanted < total:
        option, value = ("--val-share", val_share) if val_rows is None else ("--val-rows", val_rows)
        raise UserError(option, value, f"leaves an empty part: there are {total} rows")
    by_key: dict[str, list[int]] = {}
    for row, question in enumerate(questions):
        by_key.setdefault(question_key(question), []).append(row)
    every = list(by_key.values())
    random.Random(f"split {seed}").shuffle(every)
    quota = largest_remainder(Counter(sources), wanted)
    val: list[int] = []
    rest: list[list[int]] = []
    for rows in every:
        source = sources[rows[0]]
        if len(rows) <= quota[source]:
            quota[source] -= len(rows)
            val += rows
        else:
            rest.append(rows)
    for rows in rest:  # what a source could not give
        if len(rows) <= wanted - len(val):
            val += rows
    chosen = set(val)
    if not val or len(chosen) == total:
        raise UserError(
            "--val-share", val_share, "leaves an empty part: almost all questions are the same one"
        )
    return Parts([row for row in range(total) if row not in chosen], sorted(val), len(by_key))


def evaluation_keys(path: str | os.PathLike[str]) -> set[str]:
    """The normalised questions of an evaluation file: RL rows, or any shape that `readers` knows.

    Raises:
        UserError: the file cannot be read.
    """
    from scout_data.readers import READERS, detect_format
    from scout_data.rows import load_columns

    if Path(path).suffix == ".parquet":
        texts = load_columns(path, ["question"]).column("question").to_pylist()
    else:
        texts = [question.text for question in READERS[detect_format(path)](path)]
    return {question_key(text) for text in texts if text}
