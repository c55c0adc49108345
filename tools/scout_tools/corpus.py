"""Reading passages from the files people have: one iterator of `Passage`, whatever the layout.

Every reader streams, so that a 14 GB file needs no more memory than a small one.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.errors import UserError

FORMATS = ("jsonl", "wiki18", "contexts", "hotpot")
_HELP = "use {id,title,text}, wiki-18's {id,contents}, HotpotQA's official file, or JSON lines with contexts"
_CHUNK_CHARS = 1 << 20
_MAX_ITEM_CHARS = 64 << 20  # a damaged array must not pull the whole file into memory
_SEPARATORS = re.compile(r"[ \t\r\n,]*")


class Passage(msgspec.Struct, frozen=True):
    """One passage to index. ``id`` is None where the source gives none of its own."""

    title: str
    text: str
    id: str | None = None
    url: str = ""


class _Jsonl(msgspec.Struct):
    id: str | int
    title: str
    text: str
    url: str = ""


class _Wiki18(msgspec.Struct):
    id: str | int
    contents: str


class _Paragraph(msgspec.Struct):
    title: str
    paragraph_text: str


class _Contexts(msgspec.Struct):
    contexts: list[_Paragraph]


class _Hotpot(msgspec.Struct):
    context: list[tuple[str, list[str]]]


_TYPES: dict[str, type[msgspec.Struct]] = {
    "jsonl": _Jsonl,
    "wiki18": _Wiki18,
    "contexts": _Contexts,
    "hotpot": _Hotpot,
}


class SourceFile:
    """A source file opened for one pass: counts and hashes its raw bytes while they are read.

    Args:
        path: a JSON-lines or JSON file, or the same with ``.gz``.
        on_bytes: told the number of raw bytes of each read (for progress).

    Raises:
        UserError: the file is absent, is a folder, or cannot be read.
    """

    def __init__(self, path: Path, on_bytes: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.where = str(path)  # file and line of the latest passage
        self.layout = ""  # known once the passages are exhausted
        try:
            self._raw = _Hashing(path, on_bytes)
        except OSError as error:
            raise UserError(
                "source", path, f"cannot be read ({error.strerror}): give an existing file"
            ) from error
        buffered = io.BufferedReader(self._raw, 1 << 20)
        self.stream: io.BufferedIOBase = buffered
        if path.suffix == ".gz":
            self.stream = gzip.GzipFile(fileobj=buffered)

    @property
    def sha256(self) -> str:
        """Of the raw bytes read so far: of the whole file once the passages are exhausted."""
        return self._raw.digest.hexdigest()

    def close(self) -> None:
        self.stream.close()
        self._raw.close()

    def passages(self, layout: str = "auto") -> Iterator[Passage]:
        """All passages, in the order of the file.

        Raises:
            UserError: naming the file and the line (or item) that is not what the layout says.
        """
        if layout not in ("auto", *FORMATS):
            raise UserError("format", layout, f"choose one of auto, {', '.join(FORMATS)}")
        for place, raw in _records(self.stream, self.path):
            self.where = f"{self.path}:{place}"
            if layout == "auto":
                layout = _detect(raw, self.where)
            yield from _convert(raw, layout, self.where)
        if layout == "auto":
            raise UserError("source", self.path, f"holds no record: {_HELP}")
        self.layout = layout


class _Hashing(io.RawIOBase):
    def __init__(self, path: Path, on_bytes: Callable[[int], None] | None) -> None:
        self._file = path.open("rb", buffering=0)
        self._on_bytes = on_bytes
        self.digest = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n = self._file.readinto(buffer)
        self.digest.update(memoryview(buffer)[:n])
        if self._on_bytes is not None:
            self._on_bytes(n)
        return n

    def close(self) -> None:
        self._file.close()
        super().close()


def _records(stream: io.BufferedIOBase, path: Path) -> Iterator[tuple[str, bytes]]:
    """(where, JSON text of one record) of a JSON-lines file or of a file that is one JSON array."""
    try:
        line_number = 0
        for line in stream:
            line_number += 1
            start = line.lstrip(b"\xef\xbb\xbf \t\r\n")
            if not start:
                continue
            if start.startswith(b"["):
                yield from _array_items(start, stream, path)
                return
            yield str(line_number), start
            break
        for line in stream:
            line_number += 1
            if not line.isspace():
                yield str(line_number), line
    except (OSError, EOFError, zlib.error) as error:
        raise UserError("source", path, f"cannot be read after line {line_number} ({error})") from error


def _array_items(first: bytes, stream: io.BufferedIOBase, path: Path) -> Iterator[tuple[str, bytes]]:
    """The items of one JSON array, decoded piece by piece: the official files hold half a gigabyte."""
    decoder = json.JSONDecoder()
    text = io.TextIOWrapper(io.BufferedReader(_Chained(first[1:], stream)), encoding="utf-8")
    buffer, at, item, ended = "", 0, 0, False
    try:
        while True:
            at = _skip(buffer, at)
            if buffer.startswith("]", at):
                return
            try:
                value, at = decoder.raw_decode(buffer, at)
            except json.JSONDecodeError as error:
                buffer, at = buffer[at:], 0
                if ended or len(buffer) > _MAX_ITEM_CHARS:
                    where = f"{path}:item {item + 1}"
                    raise UserError("source", where, f"not valid JSON ({error.msg}): cut off?") from error
                # Doubling what is read keeps the repeated decoding of a long item linear.
                more = text.read(max(_CHUNK_CHARS, len(buffer)))
                ended, buffer = not more, buffer + more
                continue
            item += 1
            yield f"item {item}", json.dumps(value).encode()
    except UnicodeDecodeError as error:
        raise UserError("source", f"{path}:item {item + 1}", f"not UTF-8 ({error.reason})") from error


def _skip(buffer: str, at: int) -> int:
    match = _SEPARATORS.match(buffer, at)
    return match.end() if match else at


class _Chained(io.RawIOBase):  # what `_records` took off the stream, then the stream
    def __init__(self, head: bytes, tail: io.BufferedIOBase) -> None:
        self._head, self._tail = head, tail

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._head:
            n = min(len(buffer), len(self._head))
            buffer[:n], self._head = self._head[:n], self._head[n:]
            return n
        return self._tail.readinto(buffer)


def _detect(raw: bytes, where: str) -> str:
    try:
        record = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError("source", where, f"not valid JSON ({error}): {_HELP}") from error
    if isinstance(record, dict):
        for key, layout in (("contexts", "contexts"), ("context", "hotpot"), ("contents", "wiki18")):
            if key in record:
                return layout
        if "title" in record and "text" in record:
            return "jsonl"
    found = ", ".join(record) if isinstance(record, dict) else type(record).__name__
    raise UserError("source", where, f"unknown layout (found: {found}): {_HELP}")


def _convert(raw: bytes, layout: str, where: str) -> Iterator[Passage]:
    try:
        record: Any = msgspec.json.decode(raw, type=_TYPES[layout])
    except msgspec.ValidationError as error:
        raise UserError("source", where, f"not a {layout} record ({error}): {_HELP}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError("source", where, f"not valid JSON ({error}): mend or remove the line") from error
    if isinstance(record, _Jsonl):
        yield _checked(Passage(record.title, record.text, str(record.id), record.url), where)
    elif isinstance(record, _Wiki18):
        title, _, text = record.contents.partition("\n")
        yield _checked(Passage(title.strip().strip('"'), text, str(record.id)), where)
    elif isinstance(record, _Contexts):
        for paragraph in record.contexts:
            yield _checked(Passage(paragraph.title, paragraph.paragraph_text), where)
    else:
        for title, sentences in record.context:
            yield _checked(Passage(title, "".join(sentences)), where)


def _checked(passage: Passage, where: str) -> Passage:
    if not passage.title.strip() and not passage.text.strip():
        raise UserError("source", where, "a passage without title and text: remove it")
    return passage
