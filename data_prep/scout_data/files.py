"""Opening source files so that whatever is wrong with them becomes one line naming file, row and column."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from scout_protocol.errors import UserError

T = TypeVar("T")
_CHUNK_BYTES = 1 << 20


def require_file(path: str | os.PathLike[str]) -> Path:
    """The path, if a non-empty file is there.

    Raises:
        UserError: it is missing, a folder, or empty.
    """
    source = Path(path)
    if not source.is_file():
        found = "is a folder" if source.is_dir() else "no such file"
        raise UserError(str(path), found, "give the path of a file")
    if not source.stat().st_size:
        raise UserError(str(path), "0 bytes", "the file is empty: fetch it again")
    return source


def sha256_of(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's bytes, in hex."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def read_json_array(path: str | os.PathLike[str]) -> list[Any]:
    """A JSON file whose top level is a non-empty array.

    Raises:
        UserError: missing, empty, cut off, not JSON, or not an array.
    """
    raw = require_file(path).read_bytes()
    try:
        items = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UserError(str(path), error, "not valid JSON, perhaps cut off: fetch it again") from error
    if not isinstance(items, list) or not items:
        found = "[]" if isinstance(items, list) else type(items).__name__
        raise UserError(str(path), found, "the top level must be an array with at least one question")
    return items


def read_json_lines(path: str | os.PathLike[str]) -> Iterator[tuple[int, Any]]:
    """``(line number from 1, value)`` of every non-blank line.

    Raises:
        UserError: missing or empty file; a line that is not JSON; no line at all.
    """
    count = 0
    with require_file(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                value = msgspec.json.decode(line)
            except (msgspec.DecodeError, ValueError, RecursionError) as error:
                raise UserError(
                    f"{path}: line {number}",
                    error,
                    "every line must be one JSON value: cut off, or another --format?",
                ) from error
            count += 1
            yield number, value
    if not count:
        raise UserError(str(path), "only blank lines", "the file is empty: fetch it again")


def convert(value: Any, shape: type[T], where: str) -> T:
    """The decoded value as ``shape``.

    Raises:
        UserError: naming ``where`` and the column that is missing or has the wrong type.
    """
    try:
        return msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        # "Object missing required field `question`" or "Expected `str`, got `int` - at `$.answer`"
        message, _, path = str(error).partition(" - at `$")
        missing = message.rsplit("`", 2)[1] if message.startswith("Object missing") else ""
        column = ".".join(part for part in (path.rstrip("`").lstrip("."), missing) if part)
        field = f"{where}, column {column}" if column else where
        raise UserError(field, message, "is this the right --format?") from error
