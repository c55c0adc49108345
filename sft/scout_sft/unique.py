"""Which questions may be demonstrated: each once, and none that reinforcement learning is validated on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from scout_data.split import evaluation_keys, question_key
from scout_protocol.records import RLRow


def unique(rows: Sequence[RLRow], exclude: Sequence[Path] = ()) -> tuple[list[RLRow], dict[str, int]]:
    """The rows without repetitions and without the questions of these files, and how many went for what.

    Raises:
        UserError: a file cannot be read.
    """
    known = set().union(*(evaluation_keys(path) for path in exclude))
    seen: set[str] = set()
    kept, repeated, excluded = [], 0, 0
    for row in rows:
        key = question_key(row.question)
        if key in known:
            excluded += 1
        elif key in seen:
            repeated += 1
        else:
            seen.add(key)
            kept.append(row)
    found = {"question repeated": repeated, "question in --exclude": excluded}
    return kept, {name: n for name, n in found.items() if n}
