"""The steps of `scout data` as functions on files: each writes a parquet and its manifest."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scout_data.audit import audit, audit_path
from scout_data.audit_page import page
from scout_data.columns import concat, groups, read_table, with_split
from scout_data.findings import Audit, AuditSettings
from scout_data.manifest import write_bytes, write_json, write_table_manifest
from scout_data.mix import MixSettings, mix
from scout_data.rows import write_table
from scout_data.split import evaluation_keys, question_key, split
from scout_protocol.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

FORMAT = "scout"  # what a manifest calls a parquet of ours
OVERLAPS = ("refuse", "drop", "keep")


def require_parquet(option: str, path: str | os.PathLike[str]) -> Path:
    """The path, if it ends in .parquet.

    Raises:
        UserError: it does not.
    """
    if Path(path).suffix != ".parquet":
        raise UserError(option, path, "must end in .parquet")
    return Path(path)


def read_all(inputs: Sequence[str | os.PathLike[str]]) -> pa.Table:
    """The rows of several parquet files, one after another."""
    tables = [read_table(path) for path in inputs]
    return tables[0] if len(tables) == 1 else concat(tables)


def split_files(
    inputs: Sequence[str | os.PathLike[str]],
    out: Path,
    val_share: float,
    seed: int,
    val_rows: int | None = None,
    against: Sequence[str | os.PathLike[str]] = (),
    on_overlap: str = "refuse",
) -> dict[str, int]:
    """Write ``out/train.parquet`` and ``out/val.parquet``; returns rows of each, and what was dropped.

    Args:
        against: evaluation files whose questions must not be trained on.
        on_overlap: what to do about those that are there: `OVERLAPS`.

    Raises:
        UserError: unreadable input, an empty part, an overlap where it is refused.
    """
    table, overlaps, dropped = _compare(read_all(inputs), against, on_overlap)
    if table.num_rows < 2:
        raise UserError("--input", f"{table.num_rows} rows", "a split needs at least two")
    questions = table.column("question").to_pylist()
    parts = split(questions, groups(table, "data_source"), val_share, seed, val_rows)
    settings: dict[str, Any] = {
        "val_share": val_share if val_rows is None else None,
        "val_rows": val_rows,
        "questions": parts.groups,
        "on_overlap": on_overlap if against else None,
        "overlaps": overlaps,
        "dropped": dropped,
    }
    for name, rows in (("train", parts.train), ("val", parts.val)):
        part = with_split(table.take(rows).combine_chunks(), name)
        path = out / f"{name}.parquet"
        write_table(path, part)
        write_table_manifest(path, part, [(FORMAT, p) for p in inputs], seed, settings | {"part": name})
    return {
        "train": len(parts.train),
        "val": len(parts.val),
        "questions": parts.groups,
        "dropped": dropped,
        "overlap": sum(overlaps.values()),
    }


def _compare(
    table: pa.Table, against: Sequence[str | os.PathLike[str]], on_overlap: str
) -> tuple[pa.Table, dict[str, int], int]:
    """``(rows that stay, rows found in each evaluation file, rows left out)``."""
    questions = table.column("question").to_pylist()
    keyed = [question_key(q) for q in questions] if against else []
    overlaps: dict[str, int] = {}
    hit: set[int] = set()
    for path in against:
        known = evaluation_keys(path)
        rows = [row for row, key in enumerate(keyed) if key in known]
        overlaps[Path(path).name] = len(rows)
        hit.update(rows)
        if rows and on_overlap == "refuse":
            told = f"{len(rows)} of {len(questions)} questions are in it, the first: {questions[rows[0]]!r}"
            raise UserError(f"--against {path}", told, "--on-overlap drop leaves them out, keep keeps them")
    if not hit or on_overlap != "drop":
        return table, overlaps, 0
    stay = [row for row in range(len(questions)) if row not in hit]
    if not stay:
        raise UserError("--against", f"all {len(hit)} questions are in it", "give other evaluation files")
    return table.take(stay).combine_chunks(), overlaps, len(hit)


def mix_files(
    inputs: Sequence[str | os.PathLike[str]], output: Path, settings: MixSettings
) -> dict[str, int]:
    """Write the mixed rows; returns how many of each group.

    Raises:
        UserError: unreadable input, more rows asked for than exist.
    """
    mixed, counts = mix(read_all(inputs), settings)
    write_table(output, mixed)
    facts = {k: v for k, v in asdict(settings).items() if k != "seed" and v not in (None, {})}
    if settings.order != "curriculum":
        facts.pop("curriculum")
    if settings.order != "batches":
        facts.pop("batch")
    write_table_manifest(
        output,
        mixed,
        [(FORMAT, p) for p in inputs],
        settings.seed,
        facts | {"counts": dict(sorted(counts.items()))},
    )
    return counts


def audit_file(path: str | os.PathLike[str], settings: AuditSettings) -> Audit:
    """Audit a file and write ``X.audit.json`` and ``X.audit.html`` beside it.

    Raises:
        UserError: it cannot be read at all.
    """
    found = audit(path, settings)
    json_path = audit_path(path)
    write_json(json_path, found)
    write_bytes(json_path.with_suffix(".html"), page(found).encode())
    return found


def counts_line(counts: dict[str, int] | Counter[str]) -> str:
    """``hotpotqa 763, nq 763``."""
    return ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()))
