"""Which rows a training file gets, and in which order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scout_data import order
from scout_data.columns import groups, with_ids
from scout_protocol.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

ORDERS = ("shuffle", "interleave", "batches", "curriculum")


@dataclass(frozen=True, slots=True)
class MixSettings:
    """What a user chooses.

    Attributes:
        by: ``data_source``, or a key of ``extra_info``: what a group is.
        rows: how many rows; None for as many as the shares allow.
        ratio: share of each group; empty keeps their own. 0 leaves a group out.
        temperature: shares in proportion to n ** (1 / temperature): 1 keeps them, large evens them out.
        repeat: how often each row of a group is there, to over-sample a small set.
        order: `ORDERS`. ``interleave``: any prefix has the whole's mix within a row; ``batches``: likewise,
            and shuffled inside each batch; ``curriculum``: from easy to hard by ``curriculum``.
    """

    by: str = "data_source"
    rows: int | None = None
    ratio: dict[str, float] = field(default_factory=dict)
    temperature: float | None = None
    repeat: dict[str, int] = field(default_factory=dict)
    order: str = "shuffle"
    batch: int = 8
    curriculum: str = "hops"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UserError("--order", self.order, f"choose one of {', '.join(ORDERS)}")
        if self.rows is not None and self.rows < 1:
            raise UserError("--rows", self.rows, "must be at least 1")
        if self.batch < 1:
            raise UserError("--batch", self.batch, "must be at least 1")
        if self.ratio and self.temperature is not None:
            raise UserError("--temperature", self.temperature, "give --ratio or --temperature, not both")
        if self.temperature is not None and self.temperature <= 0:
            raise UserError("--temperature", self.temperature, "must be greater than 0")
        if self.ratio and (min(self.ratio.values()) < 0 or not any(self.ratio.values())):
            raise UserError("--ratio", self.ratio, "no share may be negative, and one must be positive")
        for name, times in self.repeat.items():
            if times < 1:
                raise UserError("--repeat", f"{name}={times}", "must be at least 1")


def mix(table: pa.Table, settings: MixSettings) -> tuple[pa.Table, dict[str, int]]:
    """The chosen rows in order, and how many of each group. Repeated rows get ids ``ID~2``, ``ID~3``.

    Raises:
        UserError: an unknown group; a ratio that asks for more rows than exist.
    """
    names = groups(table, settings.by)
    members: dict[str, list[int]] = {}
    for row, name in enumerate(names):
        members.setdefault(name, []).append(row)
    for option, wanted in (("--ratio", settings.ratio), ("--repeat", settings.repeat)):
        for name in wanted:
            if name not in members:
                raise UserError(option, name, f"the groups by {settings.by} are {', '.join(sorted(members))}")
    pool = {name: rows * settings.repeat.get(name, 1) for name, rows in members.items()}
    counts = choose_counts({name: len(rows) for name, rows in pool.items()}, settings)
    rng = random.Random(f"mix {settings.seed}")
    chosen = {name: _choose(pool[name], n, rng) for name, n in sorted(counts.items())}
    rows = _ordered(table, chosen, counts, settings, rng)
    mixed = table.take(rows).combine_chunks()
    return with_ids(mixed, _numbered(mixed.column("id").to_pylist())), counts


def choose_counts(available: Mapping[str, int], settings: MixSettings) -> dict[str, int]:
    """How many rows of each group. Only groups with rows are named.

    Raises:
        UserError: more rows are asked for than exist; a group has no share.
    """
    if settings.ratio:
        left_out = sorted(available.keys() - settings.ratio.keys())
        if left_out:
            raise UserError(
                "--ratio", f"nothing for {', '.join(left_out)}", "name every group; 0 leaves it out"
            )
        shares = {name: share for name, share in settings.ratio.items() if share > 0}
    elif settings.temperature is not None:
        shares = {name: n ** (1 / settings.temperature) for name, n in available.items()}
    else:
        shares = {name: float(n) for name, n in available.items()}
    whole = sum(shares.values())
    most = min(int(available[name] * whole / share + 1e-9) for name, share in shares.items())
    while any(n > available[name] for name, n in order.largest_remainder(shares, most).items()):
        most -= 1
    if settings.rows is not None and settings.rows > most:
        need = order.largest_remainder(shares, settings.rows)
        short = next(name for name, n in need.items() if n > available[name])
        told = f"{settings.rows} rows need {need[short]} of {short}, which has {available[short]}"
        raise UserError(
            "--rows", told, f"at most {most} rows have these shares; --repeat {short}=N gives more"
        )
    counts = order.largest_remainder(shares, settings.rows or most)
    return {name: n for name, n in counts.items() if n}


def _choose(pool: Sequence[int], n: int, rng: random.Random) -> list[int]:
    """``n`` of the pool, whole rounds first: no row is there once more than needed before every other is."""
    by_round = Counter[int]()
    rounds: list[list[int]] = []
    for row in pool:
        if by_round[row] == len(rounds):
            rounds.append([])
        rounds[by_round[row]].append(row)
        by_round[row] += 1
    chosen: list[int] = []
    for rows in rounds:
        left = n - len(chosen)
        chosen += rows if left >= len(rows) else rng.sample(rows, left)
    return chosen


def _ordered(
    table: pa.Table,
    chosen: Mapping[str, list[int]],
    counts: Mapping[str, int],
    settings: MixSettings,
    rng: random.Random,
) -> list[int]:
    if settings.order in ("interleave", "batches"):
        sequence = order.interleave(counts)
        if settings.order == "batches":
            sequence = order.shuffled_within(sequence, settings.batch, rng)
        return order.place(sequence, chosen, rng)
    rows = [row for name in sorted(chosen) for row in chosen[name]]
    if settings.order == "shuffle":
        rng.shuffle(rows)
        return rows
    values = groups(table, settings.curriculum)
    return [rows[i] for i in order.curriculum([values[row] for row in rows], settings.curriculum, rng)]


def _numbered(ids: Sequence[str]) -> list[str]:
    """Ids made unique: the second row of an id becomes ``ID~2``."""
    seen = Counter[str]()
    out = []
    for row_id in ids:
        seen[row_id] += 1
        out.append(row_id if seen[row_id] == 1 else f"{row_id}~{seen[row_id]}")
    return out
