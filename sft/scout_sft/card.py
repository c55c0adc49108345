"""The statistics card of a harvest: ``OUT.card.json``."""

from __future__ import annotations

import statistics
from pathlib import Path

from scout_data.manifest import write_json
from scout_sft.harvest import HarvestResult
from scout_sft.rows import read_demos


def write_card(out: Path, result: HarvestResult, left_out: dict[str, int]) -> Path:
    """Write what the demonstrations of ``out`` are like; returns the card's path."""
    demos = read_demos(out)
    chars = [len(demo.chosen) for demo in demos]
    sources: dict[str, int] = {}
    for demo in demos:
        sources[demo.data_source] = sources.get(demo.data_source, 0) + 1
    card = {
        "file": out.name,
        "demonstrations": result.kept,
        "complete": result.kept - result.early,
        "stop_too_early": result.early,
        "found_answer_context": sum(demo.found_answer_context for demo in demos),
        "query_reveals_answer": result.revealing,
        "copies_of_long_chains": result.repeated,
        "searches": {str(n): count for n, count in result.searches.items()},
        "strategies": result.by_strategy,
        "data_sources": dict(sorted(sources.items())),
        "chars": {"median": statistics.median(chars), "longest": max(chars)},
        "rejected": result.rejected,
        "left_out": left_out,
    }
    path = out.with_name(out.name + ".card.json")
    write_json(path, card)
    return path
