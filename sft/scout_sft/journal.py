"""The harvest file: what is finished stays finished, whatever happens to the process."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.records import SFTRow


class Finished(msgspec.Struct):
    """One line of the harvest file: a demonstration, or why the question gave none."""

    id: str
    row: SFTRow | None = None
    rejected: str = ""
    in_context: bool = False  # a result held the answer


class Journal:
    """The harvest file: a first line that says whose it is, then one line per finished question.

    A line cut off by a kill is dropped and its question played again.

    Raises:
        UserError: the file belongs to another harvest, or a line in the middle is damaged.
    """

    def __init__(self, path: Path, mark: dict[str, Any]) -> None:
        self.path = path
        self.finished: dict[str, Finished] = {}
        self._encoder = msgspec.json.Encoder()
        good = self._read(mark) if path.exists() else 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("r+b" if path.exists() else "w+b")
        except OSError as error:
            raise UserError("harvest file", path, f"cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UserError("harvest file", path, "another harvest is writing to it") from error
        self._file.truncate(good)
        self._file.seek(good)
        if not good:
            self._write(json.dumps(mark).encode())

    def _read(self, mark: dict[str, Any]) -> int:
        """Take in the complete lines; returns where they end, in bytes."""
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        lines = data[:end].splitlines()
        if not lines:
            return 0
        decoder = msgspec.json.Decoder(Finished)
        try:
            known = json.loads(lines[0])
        except ValueError as error:
            raise UserError("harvest file", f"{self.path}:1", "is damaged: remove the file") from error
        if known != mark:
            other = sorted(k for k in mark if not isinstance(known, dict) or known.get(k) != mark[k])
            raise UserError(
                "harvest file",
                self.path,
                f"belongs to a harvest with other {', '.join(other)}: remove it or choose another --out",
            )
        for number, line in enumerate(lines[1:], start=2):
            try:
                item = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise UserError(
                    "harvest file", f"{self.path}:{number}", "is damaged: remove that line to play it again"
                ) from error
            self.finished[item.id] = item
        return end

    def add(self, item: Finished) -> None:
        """Write down a finished question."""
        self._write(self._encoder.encode(item))
        self.finished[item.id] = item

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            raise UserError("harvest file", self.path, f"cannot be written: {error.strerror}") from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
