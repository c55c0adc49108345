"""What stands in an index's meta.json, and the rule for what may be opened.

An index folder holds ``meta.json`` and one data folder that it names. Replacing ``meta.json`` is one
atomic rename, so a reader sees the old index or the new one and nothing between.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from scout_protocol.errors import UserError
from scout_tools.index_files import DataFile

FORMAT_VERSION = 3  # 2: passages are stored as bytes; 3: meta.json holds the files' checksums
META_NAME = "meta.json"


class Source(msgspec.Struct, frozen=True):
    """A file that went into the index."""

    name: str
    format: str
    sha256: str
    bytes: int


class IndexMeta(msgspec.Struct, frozen=True):
    """Facts about an index. ``fingerprint`` is the same for every build of the same sources."""

    format_version: int
    tantivy_version: str
    tokenizer: str
    n_documents: int
    n_duplicates: int
    sources: list[Source]
    created: str  # UTC, ISO 8601
    fingerprint: str
    data: str  # name of the data folder
    files: list[DataFile]  # in it


class _Version(msgspec.Struct):
    format_version: int


def read_meta(index: Path) -> IndexMeta:
    """The meta.json of an index.

    Raises:
        UserError: there is no index, it is of another version, or its meta.json is damaged.
    """
    rebuild = f"build it: scout index build --index {index} SOURCE"
    try:
        raw = (index / META_NAME).read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError("index", index, f"no index there; {rebuild}") from error
    except OSError as error:
        raise UserError("index", index, f"cannot be read ({error.strerror})") from error
    try:
        version = msgspec.json.decode(raw, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise UserError(
                "index",
                index,
                f"has format version {version}, this Scout reads {FORMAT_VERSION}; re{rebuild}",
            )
        meta = msgspec.json.decode(raw, type=IndexMeta)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError("index", index, f"{META_NAME} is damaged ({error}); re{rebuild}") from error
    if meta.data != Path(meta.data).name or not (index / meta.data).is_dir():
        raise UserError("index", index, f"its data folder {meta.data} is missing; re{rebuild}")
    return meta


def write_meta(index: Path, meta: IndexMeta) -> None:
    """Put ``meta`` in force: from here on readers see its data folder."""
    temporary = index / f".{META_NAME}.{os.getpid()}"
    try:
        with temporary.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(meta), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(index / META_NAME)
    finally:
        temporary.unlink(missing_ok=True)
    fsync_folder(index)


def fsync_folder(folder: Path) -> None:
    """Make the names in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
