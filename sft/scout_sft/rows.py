"""Demonstrations on disk: a parquet file of `records.SFTRow`, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.records import SFTRow

COLUMNS: tuple[str, ...] = tuple(SFTRow.__struct_fields__)
# Written by Scout before these existed, or by another tool: their defaults are used.
OPTIONAL: frozenset[str] = frozenset(
    {"data_source", "id", "n_searches", "complete", "strategy", "query_reveals_answer"}
)


def _schema() -> Any:
    import pyarrow as pa

    message = pa.struct([("role", pa.string()), ("content", pa.string())])
    turn = pa.struct([("role", pa.string()), ("text", pa.string()), ("loss", pa.bool_())])
    return pa.schema(
        [
            ("messages", pa.list_(message)),
            ("chosen", pa.string()),
            ("question", pa.string()),
            ("golden_answers", pa.list_(pa.string())),
            ("found_answer_context", pa.bool_()),
            ("turns", pa.list_(turn)),
            ("data_source", pa.string()),
            ("id", pa.string()),
            ("n_searches", pa.int64()),
            ("complete", pa.bool_()),
            ("strategy", pa.string()),
            ("query_reveals_answer", pa.bool_()),
        ]
    )


def write_demos(path: Path | str, rows: Sequence[SFTRow]) -> None:
    """Write demonstrations to ``path``; a reader sees the old file or the new one, never a part.

    Raises:
        UserError: there is nothing to write, or the file cannot be written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = Path(path)
    if not rows:
        raise UserError("demonstrations", target, "there is none to write")
    partial = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_pylist([msgspec.to_builtins(row) for row in rows], schema=_schema()), partial
        )
        partial.replace(target)
    except OSError as error:
        raise UserError("demonstrations", target, f"cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def read_demos(path: Path | str) -> list[SFTRow]:
    """All demonstrations of a file, in order.

    Raises:
        UserError: no such file, not parquet, a column missing, a value of another type, or no row at all.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = Path(path)
    if not source.is_file():
        raise UserError("demonstrations", source, "no such file: make it with `scout sft harvest`")
    try:
        table = pq.read_table(source)
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            "demonstrations", source, f"is not a readable parquet file ({str(error).splitlines()[0]})"
        ) from error
    missing = [c for c in COLUMNS if c not in table.column_names and c not in OPTIONAL]
    if missing:
        raise UserError(
            "demonstrations",
            source,
            f"lacks the columns {', '.join(missing)}: make it with `scout sft harvest`",
        )
    if table.num_rows == 0:
        raise UserError("demonstrations", source, "holds no row")
    rows = table.select([c for c in COLUMNS if c in table.column_names]).to_pylist()
    try:
        return [msgspec.convert(row, SFTRow) for row in rows]
    except msgspec.ValidationError as error:
        raise UserError("demonstrations", source, f"holds a value of another type: {error}") from error
