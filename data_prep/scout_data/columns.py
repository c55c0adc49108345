"""RL rows as columns: what works on 169,615 rows at once reads, reorders and writes Arrow tables.

A table has the columns of `rows.COLUMNS` with Search-R1's types; ``extra_info`` may hold any keys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from scout_data.rows import COLUMNS, load_columns, row_schema
from scout_protocol.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

ABSENT = "none"  # the group of rows that lack a key


def read_table(path: str | os.PathLike[str], strict: bool = True) -> pa.Table:
    """The rows of a parquet file, one chunk per column, with Search-R1's types.

    Args:
        strict: refuse rows that training cannot use. False is for the audit, which counts them.

    Raises:
        UserError: one line naming file, row and column: missing or corrupt file, missing or mistyped column;
            and where strict an empty question or prompt, unusable answers, a target that differs from them,
            an id that occurs twice.
    """
    import pyarrow as pa

    raw = load_columns(path, COLUMNS).replace_schema_metadata(None)
    extra = raw.schema.field("extra_info").type
    if not pa.types.is_struct(extra) or extra.get_field_index("split") < 0:
        raise UserError(
            f"{path}: column extra_info", extra, "must be an object with at least index and split"
        )
    columns = [_as_type(pa, raw, field, path) for field in row_schema(pa, extra)]
    table = pa.table(columns, schema=row_schema(pa, extra))
    if strict:
        _check(pa, table, path)
    return table


def _as_type(pa: Any, table: pa.Table, field: pa.Field, path: Any) -> pa.Array:
    """A column in the type it must have. Another order of keys, or long strings, are converted."""
    column = table.column(field.name).combine_chunks()
    if column.type == field.type:
        return column
    try:
        if pa.types.is_string(column.type) and not pa.types.is_string(field.type):
            raise pa.ArrowInvalid("is text")  # a cast would read a string letter by letter
        return column.cast(field.type)
    except (pa.ArrowException, TypeError):
        pass
    for row, value in enumerate(column.to_pylist()):  # slow, and only where something is odd
        try:
            if isinstance(value, str) and not pa.types.is_string(field.type):
                raise pa.ArrowInvalid("is text")
            pa.array([value], field.type)
        except (pa.ArrowException, TypeError, ValueError) as error:
            remedy = f"every value must be {_described(field.name)}"
            raise UserError(f"{path}: row {row}, column {field.name}", repr(value), remedy) from error
    return pa.array(column.to_pylist(), field.type)


def _described(name: str) -> str:
    return {
        "golden_answers": "a list of strings, e.g. ['Paris']",
        "prompt": "a list of messages {role, content}",
        "reward_model": "{ground_truth: {target: [answers]}, style}",
    }.get(name, "text")


def _check(pa: Any, table: pa.Table, path: Any) -> None:
    import pyarrow.compute as pc

    def refuse(mask: pa.Array, column: str, remedy: str) -> None:
        at = pc.index(mask, True).as_py()
        if at >= 0:
            value = table.column(column)[at].as_py()
            raise UserError(f"{path}: row {at}, column {column}", repr(value), remedy)

    def blank(texts: Any) -> Any:
        return pc.fill_null(pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0), True)

    question, answers = table.column("question"), table.column("golden_answers")
    refuse(blank(question), "question", "must not be empty")
    refuse(blank(table.column("data_source")), "data_source", "must not be empty")
    refuse(_empty(pc, answers), "golden_answers", "needs at least one answer")
    refuse(_empty(pc, table.column("prompt")), "prompt", "must be a list of messages: make the row again")
    prompts = table.column("prompt")
    messages = pc.list_flatten(prompts)
    for field in ("role", "content"):
        at = pc.index(pc.is_null(pc.struct_field(messages, [field])), True).as_py()
        if at >= 0:
            row = pc.list_parent_indices(prompts)[at].as_py()
            remedy = f"every message needs a {field}: make the row again"
            raise UserError(f"{path}: row {row}, column prompt", repr(prompts[row].as_py()), remedy)
    texts = blank(pc.list_flatten(answers))
    bad = pc.index(texts, True).as_py()
    if bad >= 0:
        row = pc.list_parent_indices(answers)[bad].as_py()
        value = repr(answers[row].as_py())
        raise UserError(
            f"{path}: row {row}, column golden_answers", value, "every answer must be a non-empty string"
        )
    target = pc.struct_field(table.column("reward_model"), ["ground_truth", "target"])
    if not target.equals(answers):
        row = next(i for i, (a, b) in enumerate(zip(target, answers, strict=True)) if a != b)
        remedy = f"ground_truth.target must equal golden_answers, {answers[row].as_py()}"
        raise UserError(f"{path}: row {row}, column reward_model", repr(target[row].as_py()), remedy)
    repeated = repeats(table.column("id").to_pylist())
    if repeated:
        first, second, value = repeated[0]
        remedy = f"rows {first} and {second} have it, as do {len(repeated) - 1} more pairs: make ids unique"
        raise UserError(f"{path}: column id", repr(value), remedy)


def _empty(pc: Any, lists: Any) -> Any:
    return pc.fill_null(pc.equal(pc.list_value_length(lists), 0), True)


def repeats(values: Sequence[Any]) -> list[tuple[int, int, Any]]:
    """``(first row, later row, value)`` of every value that was there before."""
    seen: dict[Any, int] = {}
    found = []
    for row, value in enumerate(values):
        first = seen.setdefault(value, row)
        if first != row:
            found.append((first, row, value))
    return found


def keys(table: pa.Table) -> list[str]:
    """What rows can be grouped by: ``data_source``, and the plain keys of ``extra_info``."""
    import pyarrow as pa

    plain = [f.name for f in table.schema.field("extra_info").type if not pa.types.is_nested(f.type)]
    return ["data_source", *(k for k in plain if k not in ("index", "split", "question", "source_id"))]


def groups(table: pa.Table, key: str) -> list[str]:
    """Each row's value under the key, as text; `ABSENT` where a row has none.

    Raises:
        UserError: no row has that key.
    """
    import pyarrow.compute as pc

    if key not in keys(table):
        raise UserError("key", key, f"rows can be grouped by {', '.join(keys(table))}")
    column = table.column(key) if key == "data_source" else pc.struct_field(table.column("extra_info"), key)
    return [ABSENT if value is None else str(value) for value in column.to_pylist()]


def with_split(table: pa.Table, name: str) -> pa.Table:
    """The rows with ``extra_info.split`` set."""
    import pyarrow as pa

    info = table.column("extra_info").combine_chunks()
    fields = list(info.type)
    arrays = [
        pa.array([name] * len(info), pa.string()) if f.name == "split" else _child(info, i)
        for i, f in enumerate(fields)
    ]
    made = pa.StructArray.from_arrays(arrays, fields=fields)
    return table.set_column(table.schema.get_field_index("extra_info"), "extra_info", made)


def with_ids(table: pa.Table, ids: Sequence[str]) -> pa.Table:
    """The rows under other ids."""
    import pyarrow as pa

    return table.set_column(table.schema.get_field_index("id"), "id", pa.array(ids, pa.string()))


def concat(tables: Sequence[pa.Table]) -> pa.Table:
    """One table; ``extra_info`` gets every key of every table, null where a row had none.

    Raises:
        UserError: a key has another type in another table.
    """
    import pyarrow as pa

    types: dict[str, pa.DataType] = {}
    for table in tables:
        for field in table.schema.field("extra_info").type:
            known = types.setdefault(field.name, field.type)
            if known != field.type:
                told = f"{known} and {field.type}"
                raise UserError(
                    f"extra_info.{field.name}", told, "give every file the same type under this key"
                )
    order = ["index", "split", *sorted(types.keys() - {"index", "split"})]
    fields = [pa.field(name, types[name]) for name in order if name in types]
    parts = []
    for table in tables:
        info = table.column("extra_info").combine_chunks()
        arrays = [
            _child(info, at)
            if (at := info.type.get_field_index(f.name)) >= 0
            else pa.nulls(len(info), f.type)
            for f in fields
        ]
        made = pa.StructArray.from_arrays(arrays, fields=fields)
        parts.append(table.set_column(table.schema.get_field_index("extra_info"), "extra_info", made))
    return pa.concat_tables(parts).combine_chunks()


def _child(info: Any, at: int) -> Any:
    import pyarrow.compute as pc

    return pc.struct_field(info, [at])  # unlike info.field(), it minds the parent's offset and nulls
