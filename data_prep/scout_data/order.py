"""Orders of rows: shuffled, interleaved so that every stretch has the whole's mix, or easy first."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from scout_data.columns import ABSENT
from scout_protocol.errors import UserError

_LEVELS = {"easy": 0, "medium": 1, "hard": 2}  # HotpotQA's


def largest_remainder(shares: Mapping[str, float], total: int) -> dict[str, int]:
    """Whole numbers in proportion to ``shares`` that add up to ``total``, each off by less than 1."""
    whole = sum(shares.values())
    exact = {name: total * share / whole for name, share in shares.items()}
    counts = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(exact, key=lambda name: (counts[name] - exact[name], name))
    for name in by_rest[: total - sum(counts.values())]:
        counts[name] += 1
    return counts


def interleave(counts: Mapping[str, int]) -> list[str]:
    """A sequence with ``counts[name]`` of each name; every prefix has each name's share within 1 row.

    Tijdeman's chairman assignment (Discrete Mathematics 32, 1980): with k names no prefix is off by more
    than 1 - 1/(2k - 2). In whole numbers throughout.
    """
    left = {name: n for name, n in sorted(counts.items()) if n > 0}
    total = sum(left.values())
    if len(left) < 2:
        return [name for name, n in left.items() for _ in range(n)]
    scale = 2 * len(left) - 2
    placed = dict.fromkeys(left, 0)
    sequence = []
    for step in range(1, total + 1):
        best, best_deadline = "", 0
        for name, n in left.items():
            if scale * (step * n - placed[name] * total) < total:
                continue  # it has had its share for now
            deadline = -((1 - scale * (placed[name] + 1)) * total // (scale * n))
            if not best or deadline < best_deadline:
                best, best_deadline = name, deadline
        placed[best] += 1
        sequence.append(best)
    return sequence


def shuffled_within(sequence: Sequence[str], batch: int, rng: random.Random) -> list[str]:
    """The sequence with each batch shuffled: the mix of a batch stays, its order does not."""
    out: list[str] = []
    for start in range(0, len(sequence), batch):
        part = list(sequence[start : start + batch])
        rng.shuffle(part)
        out += part
    return out


def place(sequence: Sequence[str], rows: Mapping[str, Sequence[int]], rng: random.Random) -> list[int]:
    """Rows in the order of the names, each group's own rows shuffled."""
    left = {}
    for name, members in sorted(rows.items()):
        left[name] = list(members)
        rng.shuffle(left[name])
    return [left[name].pop() for name in sequence]


def curriculum(values: Sequence[str], key: str, rng: random.Random) -> list[int]:
    """Row numbers from easy to hard, shuffled among equals. Numbers ascend; levels are easy, medium, hard.

    Raises:
        UserError: a value that is neither, or a row without the key.
    """
    ranks: dict[str, float] = {}
    for value in sorted(set(values)):
        try:
            ranks[value] = _LEVELS[value] if value in _LEVELS else float(value)
        except ValueError:
            n = sum(v == value for v in values)
            told = f"{n} rows have none" if value == ABSENT else repr(value)
            raise UserError(
                f"--curriculum {key}", told, "needs a number, or easy, medium, hard, in every row"
            ) from None
    rows = list(range(len(values)))
    rng.shuffle(rows)
    rows.sort(key=lambda row: ranks[values[row]])
    return rows
