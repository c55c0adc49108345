"""Building a BM25 index: streamed, deduplicated, and put in force by one rename or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.errors import UserError
from scout_tools.analyzer import TOKENIZER, TOKENIZER_NAME, is_tantivy_error, make_analyzer
from scout_tools.corpus import Passage, SourceFile
from scout_tools.index_files import describe
from scout_tools.index_meta import FORMAT_VERSION, META_NAME, IndexMeta, Source, fsync_folder, write_meta

DATA_PREFIX = "data-"
# A segment is written when this is full, and a search goes through every segment: with 200,000 passages in
# one instead of six it takes 0.41 instead of 0.59 ms. A million passages of 500 characters need about 280 MB.
_HEAP_BYTES = 320 << 20


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A passage as the index keeps it (MessagePack). ``ordinal``, its place in the sources, breaks ties."""

    ordinal: int
    id: str
    title: str
    text: str
    url: str


def make_schema() -> Any:
    """The tantivy schema: one field that is searched (title and text), one that is shown."""
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("body", stored=False, tokenizer_name=TOKENIZER_NAME, index_option="freq")
    # Bytes: tantivy's Python text fields are always indexed as well, which costs a third of the disk.
    builder.add_bytes_field("passage", stored=True)
    return builder.build()


def build_index(
    index: Path,
    sources: Sequence[Path],
    layout: str = "auto",
    *,
    keep_duplicates: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> IndexMeta:
    """Build the index of ``sources`` in the folder ``index``; an index already there is replaced at the end.

    Identical passages (same title and text) are kept once, the first of them.

    Raises:
        UserError: a source is not readable or not what it says, the folder is not an index, another build
            is running there, or it cannot be written. Nothing of the attempt is left behind.
    """
    if not sources:
        raise UserError("source", "none given", "give at least one file of passages")
    with _claimed(index):
        data = index / f"{DATA_PREFIX}{secrets.token_hex(6)}"
        try:
            data.mkdir()
            meta = _write_data(data, sources, layout, keep_duplicates, on_bytes)
            for path in data.iterdir():
                _fsync_file(path)
            fsync_folder(data)
            write_meta(index, meta)
        except BaseException as error:
            shutil.rmtree(data, ignore_errors=True)
            if isinstance(error, OSError) or is_tantivy_error(error):
                free_mb = shutil.disk_usage(index).free // 1_000_000
                why = " ".join(str(error).split())
                remedy = f"cannot be written ({why}; {free_mb} MB free): make room or choose another folder"
                raise UserError("index", index, remedy) from error
            raise
        _sweep(index, keep=data.name)
    return meta


def _write_data(
    data: Path,
    sources: Sequence[Path],
    layout: str,
    keep_duplicates: bool,
    on_bytes: Callable[[int], None] | None,
) -> IndexMeta:
    import tantivy

    tantivy_index = tantivy.Index(make_schema(), path=str(data))
    tantivy_index.register_tokenizer(TOKENIZER_NAME, make_analyzer())
    # One thread: the same sources give the same segments, scores and order.
    writer = tantivy_index.writer(_HEAP_BYTES, 1)
    try:
        used, n_documents, n_duplicates = _add_all(writer, sources, layout, keep_duplicates, on_bytes)
        writer.commit()
    finally:
        # After a failure too: the folder can be removed only when no thread writes into it.
        writer.wait_merging_threads()
    return IndexMeta(
        format_version=FORMAT_VERSION,
        tantivy_version=tantivy.__version__,
        tokenizer=TOKENIZER,
        n_documents=n_documents,
        n_duplicates=n_duplicates,
        sources=used,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=_fingerprint(used, keep_duplicates),
        data=data.name,
        files=describe(data),
    )


def _add_all(
    writer: Any,
    sources: Sequence[Path],
    layout: str,
    keep_duplicates: bool,
    on_bytes: Callable[[int], None] | None,
) -> tuple[list[Source], int, int]:
    """Add every passage; (sources with their hashes, passages added, duplicates dropped)."""
    used: list[Source] = []
    n_read = n_documents = 0
    contents: set[bytes] = set()
    ids: set[int] = set()
    for path in sources:
        source = SourceFile(path, on_bytes)
        try:
            for passage in source.passages(layout):
                n_read += 1
                if not keep_duplicates:
                    digest = _digest(passage)
                    if digest in contents:
                        continue
                    contents.add(digest)
                own_id = str(n_documents) if len(sources) == 1 else f"{path.name}:{n_documents}"
                document_id = own_id if passage.id is None else passage.id
                key = _hash_id(document_id)
                if key in ids:
                    raise UserError(
                        "source", source.where, f"id {document_id!r} is used twice: make ids unique"
                    )
                ids.add(key)
                writer.add_document(_document(passage, document_id, n_documents))
                n_documents += 1
            used.append(Source(path.name, source.layout, source.sha256, path.stat().st_size))
        finally:
            source.close()
    return used, n_documents, n_read - n_documents


def _document(passage: Passage, document_id: str, ordinal: int) -> Any:
    import tantivy

    document = tantivy.Document()
    stored = Stored(ordinal, document_id, passage.title, passage.text, passage.url)
    document.add_bytes("passage", msgspec.msgpack.encode(stored))
    document.add_text("body", f"{passage.title}\n{passage.text}")
    return document


def _digest(passage: Passage) -> bytes:
    content = f"{passage.title}\0{passage.text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(content, digest_size=16).digest()


def _hash_id(document_id: str) -> int:
    """64 bits of an id: a set of these is a quarter of a set of strings."""
    return int.from_bytes(hashlib.blake2b(document_id.encode(), digest_size=8).digest())


def _fingerprint(sources: Sequence[Source], keep_duplicates: bool) -> str:
    facts = [str(FORMAT_VERSION), TOKENIZER, str(keep_duplicates)]
    facts += [f"{source.format} {source.sha256}" for source in sources]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


@contextmanager
def _claimed(index: Path) -> Iterator[None]:
    """Hold the folder for one build. Folders that did not exist are taken away again if the build fails."""
    missing = [path for path in (index, *index.parents) if not path.exists()]
    try:
        index.mkdir(parents=True, exist_ok=True)
        handle = os.open(index, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise UserError(
            "index", index, f"cannot be made ({error.strerror}): choose another folder"
        ) from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError("index", index, "another build runs there: wait for it or stop it") from error
        strangers = sorted(p.name for p in index.iterdir() if not _is_ours(p.name))
        if strangers:
            raise UserError("index", index, f"holds {strangers[0]}, which is no index: choose another folder")
        _sweep(index, keep=_current_data(index))
        yield
    except BaseException:
        for path in missing:
            with suppress(OSError):
                path.rmdir()  # only if empty: what others put there is theirs
        raise
    finally:
        os.close(handle)


def _is_ours(name: str) -> bool:
    return name == META_NAME or name.startswith((DATA_PREFIX, f".{META_NAME}."))


def _current_data(index: Path) -> str | None:
    """The data folder in force, read leniently: an index of another version must stay until replaced."""
    try:
        facts = msgspec.json.decode((index / META_NAME).read_bytes())
        return str(facts["data"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError):
        return None


def _sweep(index: Path, keep: str | None) -> None:
    """Remove what builds that were killed, or an index since replaced, left in the folder."""
    for path in index.iterdir():
        if path.name in (META_NAME, keep):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _fsync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
