"""Whether the files of an index still hold what the build wrote: size and CRC-32 of each stand in meta.json.

tantivy looks at neither when it opens an index or searches it: a damaged posting list gives other hits and no
error. Checking 500 MB that are in memory takes a quarter of a second.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
import zlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

CHECK_AT_START_BYTES = 4 << 30  # to read a larger index would keep a start waiting
LOOK_S = 1.0  # between two looks at the files of an index that is served
_PIECE_BYTES = 1 << 20


class DataFile(msgspec.Struct, frozen=True):
    """One file of the data folder as it was written."""

    name: str
    bytes: int
    crc32: int


class DamagedError(Exception):
    """A file is not what was written; the text names it."""


def describe(data: Path) -> list[DataFile]:
    """The files of a data folder, but for the locks, which an opened index makes anew."""
    found = []
    for path in sorted(data.iterdir()):
        if path.suffix != ".lock":
            with path.open("rb") as file:
                found.append(DataFile(path.name, path.stat().st_size, _crc32(file.fileno())))
    return found


class IndexFiles:
    """The open files of one index: for us they stay what they are if the folder's are removed or replaced.

    Raises:
        DamagedError: a file is missing, or has another size.
    """

    def __init__(self, data: Path, files: Sequence[DataFile]) -> None:
        self._files: list[tuple[DataFile, int]] = []
        weakref.finalize(self, _close, self._files)
        self._stamps: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._look_at, self._damage = 0.0, ""
        try:
            for file in files:
                handle = os.open(data / file.name, os.O_RDONLY | os.O_CLOEXEC)
                self._files.append((file, handle))
                self._stamps[file.name] = _stamp(handle)
                if (size := self._stamps[file.name][0]) != file.bytes:
                    raise DamagedError(f"{file.name} has {size} bytes, {file.bytes} were written")
        except BaseException as error:
            _close(self._files)
            if isinstance(error, OSError):
                raise DamagedError(f"{Path(error.filename).name}: {error.strerror}") from error
            raise

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file, _ in self._files)

    def verify(self) -> None:
        """Read everything.

        Raises:
            DamagedError: a file is not what was written.
        """
        for file, handle in self._files:
            self._verify(file, handle)

    def watch(self) -> None:
        """Once a second, look whether a file was written to, and read it again where it was.

        A disk that returns other bytes without a write is seen by `verify` alone.

        Raises:
            DamagedError: now, and as long as it stays so.
        """
        with self._lock:
            if time.monotonic() >= self._look_at:
                self._damage = ""
                for file, handle in self._files:
                    if _stamp(handle) != self._stamps[file.name]:
                        try:
                            self._verify(file, handle)
                        except DamagedError as error:
                            self._damage = str(error)
                self._look_at = time.monotonic() + LOOK_S
            if self._damage:
                raise DamagedError(self._damage)

    def _verify(self, file: DataFile, handle: int) -> None:
        stamp = _stamp(handle)  # before it is read: a write meanwhile must be seen
        try:
            if stamp[0] != file.bytes or _crc32(handle) != file.crc32:
                raise DamagedError(f"{file.name} is not what was written")
        except OSError as error:
            raise DamagedError(f"{file.name}: {error.strerror}") from error
        self._stamps[file.name] = stamp


def _stamp(handle: int) -> tuple[int, int]:
    facts = os.fstat(handle)
    return facts.st_size, facts.st_mtime_ns


def _crc32(handle: int) -> int:
    # pread: workers share one position with the process that opened the file.
    crc, position = 0, 0
    while piece := os.pread(handle, _PIECE_BYTES, position):
        crc, position = zlib.crc32(piece, crc), position + len(piece)
    return crc


def _close(files: list[tuple[DataFile, int]]) -> None:
    while files:
        os.close(files.pop()[1])
