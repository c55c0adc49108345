"""RL rows on disk: parquet with the columns and types of Search-R1's published files.

Search-R1's own parquet (PeterJinGo/nq_hotpotqa_train on the Hugging Face hub) has the same eight columns
in the same order; ours differs only inside ``extra_info``, which may hold more keys than ``index`` and
``split``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt
from scout_protocol.records import RLRow

if TYPE_CHECKING:
    import pyarrow as pa

ABILITY = "fact-reasoning"  # Search-R1's constant
COLUMNS = (
    "id",
    "question",
    "golden_answers",
    "data_source",
    "prompt",
    "ability",
    "reward_model",
    "extra_info",
)


def make_row(
    question: str,
    golden_answers: Sequence[str],
    prompt_name: str,
    data_source: str,
    split: str,
    index: int,
    extra: Mapping[str, Any] | None = None,
) -> RLRow:
    """One question as a row, with its prompt built from the prompt file ``prompt_name``.

    Args:
        extra: more keys for ``extra_info`` (``hops``, ``oracle``, ``supporting_titles``, …). Keys whose value
            is None are left out; ``index``, ``split`` and ``question`` always come from the arguments.

    Raises:
        UserError: empty question, no golden answer, an answer that is empty or not a string, unknown prompt.
    """
    where = f"row {index}"
    question = question.strip()
    if not question:
        raise UserError(f"{where}, column question", repr(question), "must not be empty")
    answers = check_answers(golden_answers, f"{where}, column golden_answers")
    info: dict[str, Any] = {"index": index, "split": split, "question": question}
    info |= {k: v for k, v in sorted((extra or {}).items()) if v is not None and k not in info}
    return RLRow(
        data_source=data_source,
        prompt=load_prompt(prompt_name).build(question, (extra or {}).get("facts") or ()),
        ability=ABILITY,
        reward_model={"ground_truth": {"target": answers}, "style": "rule"},
        extra_info=info,
        id=f"{data_source}-{split}-{index}",
        question=question,
        golden_answers=list(answers),
    )


def check_answers(value: Any, field: str) -> list[str]:
    """Golden answers as a list of non-empty strings; numpy arrays and tuples are accepted as lists.

    Raises:
        UserError: naming ``field``: a lone string (it would be read letter by letter), an empty list, an
            answer that is empty or not a string.
    """
    if hasattr(value, "tolist"):  # a numpy array, as pandas hands out list columns
        value = value.tolist()
    if isinstance(value, str) or not isinstance(value, (list, tuple)):
        raise UserError(field, repr(value), "must be a list of strings, e.g. ['Paris']")
    if not value:
        raise UserError(field, "[]", "needs at least one answer")
    for answer in value:
        if not isinstance(answer, str) or not answer.strip():
            raise UserError(field, repr(answer), "every answer must be a non-empty string")
    return list(value)


def check_target(reward_model: Any, answers: list[str], where: str) -> None:
    """What verl rewards (``reward_model``) must be what evaluation reports (``golden_answers``).

    Raises:
        UserError: ``reward_model.ground_truth.target`` is absent or differs.
    """
    truth = reward_model.get("ground_truth") if isinstance(reward_model, dict) else None
    target = truth.get("target") if isinstance(truth, dict) else None
    if target != answers:
        remedy = f"ground_truth.target must equal golden_answers, {answers}"
        raise UserError(f"{where}, column reward_model", repr(reward_model), remedy)


def write_rows(path: str | os.PathLike[str], rows: Sequence[RLRow]) -> None:
    """Write rows as parquet, all or nothing. The same rows give the same bytes.

    Raises:
        UserError: no rows; an ``extra_info`` key whose values have no common type; an unwritable path.
    """
    import pyarrow as pa

    if not rows:
        raise UserError(str(path), "0 rows", "nothing was written; check the filter or the source file")
    schema = row_schema(pa, _extra_info_type(pa, rows))
    write_table(path, pa.Table.from_pylist([msgspec.structs.asdict(row) for row in rows], schema=schema))


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write a table as parquet, all or nothing. The same table gives the same bytes.

    Raises:
        UserError: no rows, or an unwritable path.
    """
    import pyarrow.parquet as pq

    target = Path(path)
    if not table.num_rows:
        raise UserError(str(target), "0 rows", "nothing was written; check the filter or the source file")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, temporary, compression="zstd")
        temporary.replace(target)
    except OSError as error:
        raise UserError(
            str(target), error.strerror or error, "choose a writable path with free space"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def row_schema(pa: Any, extra_info: pa.DataType) -> pa.Schema:
    text, texts = pa.string(), pa.list_(pa.string())
    types = {
        "id": text,
        "question": text,
        "golden_answers": texts,
        "data_source": text,
        "prompt": pa.list_(pa.struct([("content", text), ("role", text)])),
        "ability": text,
        "reward_model": pa.struct([("ground_truth", pa.struct([("target", texts)])), ("style", text)]),
        "extra_info": extra_info,
    }
    return pa.schema([(name, types[name]) for name in COLUMNS])


def _extra_info_type(pa: Any, rows: Sequence[RLRow]) -> pa.DataType:
    """The struct type that holds every key of every row; a row without a key stores null there."""
    keys = {key for row in rows for key in row.extra_info} - {"index", "split"}
    fields = [("index", pa.int64()), ("split", pa.string())]
    for key in sorted(keys):
        try:
            found = pa.array([row.extra_info.get(key) for row in rows]).type
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise UserError(
                f"extra_info.{key}", error, "give every row the same type under this key"
            ) from error
        fields.append((key, _storable(pa, found, key)))
    return pa.struct(fields)


def _storable(pa: Any, found: pa.DataType, key: str) -> pa.DataType:
    """The type with "unknown" (a list that is empty in every row) read as string."""
    if pa.types.is_null(found):
        return pa.string()
    if pa.types.is_list(found):
        return pa.list_(_storable(pa, found.value_type, key))
    if pa.types.is_struct(found):
        if not found.num_fields:
            raise UserError(
                f"extra_info.{key}", "{}", "parquet cannot store an empty object: leave the key out"
            )
        return pa.struct([(f.name, _storable(pa, f.type, key)) for f in found])
    return found


def read_rows(path: str | os.PathLike[str]) -> list[RLRow]:
    """Read rows written by `write_rows` or published by Search-R1; columns beyond `COLUMNS` are ignored.

    Raises:
        UserError: one line naming file, row and column: missing or corrupt file, missing or mistyped column,
            no rows, empty question, unusable golden answers.
    """
    rows: list[RLRow] = []
    for number, record in enumerate(read_parquet(path, COLUMNS)):
        where = f"{path}: row {number}"
        if not isinstance(record["question"], str) or not record["question"].strip():
            raise UserError(f"{where}, column question", repr(record["question"]), "must not be empty")
        answers = check_answers(record["golden_answers"], f"{where}, column golden_answers")
        check_target(record["reward_model"], answers, where)
        _check_prompt(record["prompt"], where)
        try:
            row = msgspec.convert(_without_nulls(record), RLRow)
        except msgspec.ValidationError as error:
            raise UserError(where, error, "must have the types of scout_protocol.records.RLRow") from error
        rows.append(row)
    return rows


def _check_prompt(prompt: Any, where: str) -> None:
    """Messages with a role and a content each.

    Raises:
        UserError: naming ``where``: anything else, such as a column of nulls.
    """
    messages = prompt if isinstance(prompt, list) and prompt else [None]
    for message in messages:
        known = message if isinstance(message, dict) else {}
        missing = [key for key in ("role", "content") if not isinstance(known.get(key), str)]
        if missing:
            remedy = f"must be a list of messages, each with a {missing[0]}: make the row again"
            raise UserError(f"{where}, column prompt", repr(prompt)[:200], remedy)


def read_parquet(path: str | os.PathLike[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """The named columns of a parquet file, one dict a row.

    Raises:
        UserError: as `load_columns`.
    """
    records: list[dict[str, Any]] = load_columns(path, columns).to_pylist()
    return records


def load_columns(path: str | os.PathLike[str], columns: Sequence[str]) -> pa.Table:
    """The named columns of a parquet file as they are stored.

    Raises:
        UserError: the file is missing, is not parquet or is cut off, lacks a column, or has no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    source = Path(path)
    if not source.is_file():
        raise UserError(str(path), "no such file", "check the path")
    try:
        with pq.ParquetFile(source) as file:
            present = file.schema_arrow.names
            missing = [name for name in columns if name not in present]
            if missing:
                names = ", ".join(present)
                raise UserError(f"{path}: column {missing[0]}", "missing", f"the file has only: {names}")
            table = file.read(columns=list(columns))
    except (pa.ArrowException, OSError) as error:
        raise UserError(str(path), error, "not a readable parquet file: make it again") from error
    if not table.num_rows:
        raise UserError(str(path), "0 rows", "the file is empty: make it again")
    return table


def _without_nulls(value: Any) -> Any:
    """The value without null entries of objects: a struct column stores null where a row lacks the key."""
    if isinstance(value, dict):
        return {k: _without_nulls(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_without_nulls(v) for v in value]
    return value
