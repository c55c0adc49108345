"""Questions to ask: from a file, or made up where there is none."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

from scout_protocol.errors import UserError


def read(path: Path) -> list[str]:
    """Questions of a file: plain text, one a line, or JSON lines with ``question`` or ``question_text``.

    Raises:
        UserError: not readable, or no question in it.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("--questions", path, f"cannot be read ({error})") from error
    questions = []
    for number, line in enumerate(lines, start=1):
        text: object = line
        if line.startswith("{"):
            try:
                row = msgspec.json.decode(line)
            except msgspec.DecodeError as error:
                raise UserError("--questions", f"{path}:{number}", f"not valid JSON ({error})") from error
            text = row.get("question") or row.get("question_text")
        if isinstance(text, str) and text.strip():
            questions.append(text.strip())
    if not questions:
        raise UserError("--questions", path, "holds no question")
    return questions


_PARTS = (
    ("Which band", "What film", "Which river", "Who", "What city", "Which university"),
    ("was founded by", "lies north of", "directed", "is named after", "played against", "wrote about"),
    (
        "the governor of Ohio",
        "a lake in Finland",
        "the sister of Mozart",
        "Doctor Who",
        "the moon landing",
    ),
    (
        "in the nineteenth century",
        "before the war",
        "during a tour",
        "near the border",
        "as a child",
    ),
)


def made_up(n: int, seed: int = 0) -> list[str]:
    """``n`` questions of 8 to 15 words."""
    rng = random.Random(seed)
    return [" ".join(rng.choice(part) for part in _PARTS) + f" number {i}?" for i in range(n)]
