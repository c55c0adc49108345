"""Which of the demonstrations that came out are kept, and which are there more than once."""

from __future__ import annotations

import msgspec

from scout_protocol.records import SFTRow
from scout_sft.harvest_settings import HarvestSettings
from scout_sft.plan import unit_interval


def capped(kept: list[SFTRow], settings: HarvestSettings) -> tuple[list[SFTRow], int]:
    """Those with at most the allowed share that reveals, and how many went; by ids and seed alone."""
    revealing = [row.id for row in kept if row.query_reveals_answer]
    share = settings.max_revealing_share
    honest = len(kept) - len(revealing)
    room = len(revealing) if share >= 1 else int(share * honest / (1 - share) + 1e-9)
    revealing.sort(key=lambda row_id: unit_interval(settings.seed, "revealing", row_id))
    gone = set(revealing[room:])
    return [row for row in kept if row.id not in gone], len(gone)


def repeated(kept: list[SFTRow], settings: HarvestSettings) -> tuple[list[SFTRow], int]:
    """Long chains several times each, right after one another, and how many rows that adds.

    A long chain has at least ``long_chain_from`` searches; copies get the ids ``ID~2``, ``ID~3`` as those of
    `scout data mix` do. One whose query gives the answer away is never repeated: the cap on these holds.
    """
    rows: list[SFTRow] = []
    for row in kept:
        rows.append(row)
        if row.n_searches >= settings.long_chain_from and not row.query_reveals_answer:
            rows += [
                msgspec.structs.replace(row, id=f"{row.id}~{n}")
                for n in range(2, settings.long_chain_repeat + 1)
            ]
    return rows, len(rows) - len(kept)
