"""Traces on disk: one JSON line each, appended as they finish; a killed writer loses at most one line."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.records import StopReason, Trace

_DECODER = msgspec.json.Decoder(Trace)
_ENCODER = msgspec.json.Encoder()


def question_key(data_source: str, question_id: str) -> str:
    """What identifies a question: Search-R1's files use the same ids in different sources."""
    return f"{data_source}/{question_id}"


def trace_key(trace: Trace) -> str:
    """What identifies a trajectory within an evaluation: its question, and which of several samples it is."""
    return sample_key(question_key(trace.data_source, trace.question_id), int(trace.extra.get("sample", 0)))


def sample_key(question: str, sample: int) -> str:
    """The key of one sample of a question; the first one's is the question's own."""
    return f"{question}#{sample}" if sample else question


def read_traces(path: str | os.PathLike[str]) -> Iterator[Trace]:
    """The traces of a file, in order. A last line without its newline (a killed writer) is left out.

    Raises:
        UserError: the file is missing, or a complete line is no trace.
    """
    source = Path(path)
    if not source.is_file():
        raise UserError("traces", source, "no such file; `scout eval run` writes it")
    with source.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield _DECODER.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UserError(
                    f"{source}: line {number}", error, "is no trace: remove the file and run again"
                ) from error


class TraceLog:
    """The file of one evaluation, open for appending; use as a context manager. One writer at a time.

    On opening, a torn last line and the lines of outages are taken out, so those questions run again.

    Attributes:
        done: keys of the trajectories that need not run again.

    Raises:
        UserError: another process writes the same file, or a line in it is no trace.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.done = path, set[str]()
        self._file: FileIO | None = None
        self._lock: BinaryIO | None = None

    def __enter__(self) -> TraceLog:
        self._lock = self.path.with_name(f".{self.path.name}.lock").open("wb")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise UserError(
                "out", self.path.parent, "another evaluation is writing here; wait for it"
            ) from error
        try:
            self._repair()
            # No buffer: after a full disk there is nothing left over that closing would have to write.
            self._file = self.path.open("ab", buffering=0)
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
        if self._lock is not None:
            self._lock.close()

    def append(self, trace: Trace) -> None:
        """Write one trace; it survives a kill of this process from here on."""
        if self._file is None:
            raise RuntimeError("TraceLog is not open")
        left = memoryview(_ENCODER.encode(trace) + b"\n")
        try:
            while left:  # a disk that is nearly full takes a part of it
                left = left[self._file.write(left) :]
        except OSError as error:
            remedy = f"{error.strerror}: make room and run the same command again, it goes on from here"
            raise UserError("traces", self.path, remedy) from error

    def _repair(self) -> None:
        if not self.path.exists():
            return
        kept, temporary = 0, self.path.with_name(f".{self.path.name}.tmp")
        with temporary.open("wb") as file:
            for trace in read_traces(self.path):
                key = trace_key(trace)
                if trace.stop_reason is StopReason.INFRA_ERROR or key in self.done:
                    continue
                self.done.add(key)
                kept += file.write(_ENCODER.encode(trace) + b"\n")
        if kept == self.path.stat().st_size:
            temporary.unlink()
        else:
            temporary.replace(self.path)
