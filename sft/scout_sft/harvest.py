"""`scout sft harvest`: demonstrations from the real tool server, by a row's own plan or by a strategy.

Every finished question is one JSON line in ``OUT.jsonl``, so a kill loses nothing; when all questions are
finished the kept ones become the parquet file. An outage is not a result: such a question is tried again,
and if the server stays away the command ends with what it has and says how to go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scout_protocol.errors import UserError
from scout_protocol.records import RLRow, SFTRow
from scout_sft.harvest_settings import HarvestSettings, fingerprint
from scout_sft.journal import Journal
from scout_sft.play import play
from scout_sft.players import planned_player, sampled_player
from scout_sft.rows import write_demos
from scout_sft.select import capped, repeated
from scout_sft.strategies import assign

__all__ = ["HarvestResult", "HarvestSettings", "harvest"]


@dataclass(frozen=True, slots=True)
class HarvestResult:
    """Counts of a finished harvest. ``by_strategy``: questions played, with the answer in context, kept.

    ``kept`` counts rows of the file, ``repeated`` those of them that are copies of long chains.
    """

    kept: int
    early: int
    rejected: dict[str, int]
    searches: dict[int, int]
    played: int
    resumed: int
    by_strategy: dict[str, dict[str, int]]
    revealing: int
    repeated: int = 0


def harvest(rows: Sequence[RLRow], out: Path, settings: HarvestSettings) -> HarvestResult:
    """Play every row that has a plan and write the demonstrations to ``out`` (parquet), in the rows' order.

    Raises:
        UserError: no row has a plan, ids repeat, the harvest file belongs to another harvest or is damaged,
            the server is not there or goes away and stays away, nothing was kept.
    """
    twice = [row_id for row_id, n in Counter(row.id for row in rows).items() if n > 1]
    if twice:
        raise UserError("--rows", f"id {twice[0]}", f"occurs more than once (so do {len(twice) - 1} others)")
    chosen = assign(rows, dict(settings.strategies), settings.seed)
    player = sampled_player(rows, settings) if settings.policy else planned_player(rows, chosen, settings)
    planned = player.rows
    journal = Journal(out.with_name(out.name + ".jsonl"), fingerprint(planned, settings))
    resumed = len(journal.finished)
    with journal:
        asyncio.run(play(player, journal, settings))
    finished = [journal.finished[row.id] for row in planned]
    rejected = Counter(item.rejected for item in finished if item.row is None)
    kept, revealing = capped([item.row for item in finished if item.row is not None], settings)
    if revealing:
        rejected["query reveals the answer (--max-revealing-share)"] = revealing
    if not kept:
        reasons = ", ".join(f"{reason}: {n}" for reason, n in rejected.most_common())
        raise UserError("demonstrations", "none kept", f"all {len(finished)} were rejected ({reasons})")
    kept, copies = repeated(kept, settings)
    write_demos(out, kept)
    return HarvestResult(
        kept=len(kept),
        early=sum(not row.complete for row in kept),
        rejected=dict(rejected),
        searches=dict(sorted(Counter(row.n_searches for row in kept).items())),
        played=len(finished) - resumed,
        resumed=resumed,
        by_strategy=_by_strategy(rows, chosen, journal, kept),
        revealing=sum(row.query_reveals_answer for row in kept),
        repeated=copies,
    )


def _by_strategy(
    rows: Sequence[RLRow], chosen: dict[str, str], journal: Journal, kept: Sequence[SFTRow]
) -> dict[str, dict[str, int]]:
    facts: dict[str, Counter[str]] = {}
    left = {row.id for row in kept}
    for row in rows:
        counts = facts.setdefault(chosen[row.id], Counter({"questions": 0, "in context": 0, "kept": 0}))
        item = journal.finished.get(row.id)
        counts["questions"] += 1
        counts["in context"] += item is not None and item.in_context
        counts["kept"] += row.id in left
    return {name: dict(counts) for name, counts in facts.items()}
