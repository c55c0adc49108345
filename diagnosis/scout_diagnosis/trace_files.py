"""Traces from files of any size, one line in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.records import Trace

NAME = "traces.jsonl"
MAX_LINE_BYTES = 64 << 20  # longer than any trajectory: a file without line ends must not fill the memory
_PATTERNS = (NAME, f"*/{NAME}", f"eval/*/{NAME}")
_DECODER = msgspec.json.Decoder(Trace)


@dataclass(frozen=True, slots=True)
class Found:
    """A trace and where it stands; ``line`` counts from 1."""

    path: Path
    line: int
    trace: Trace


@dataclass(frozen=True, slots=True)
class TornLine:
    """A last line that is not complete: its run is being written, or was killed."""

    path: Path
    line: int


def trace_files(place: Path) -> list[Path]:
    """The file itself, or the traces of a run: its training stages' and its evaluations', sorted by path.

    Raises:
        UserError: there is no such path, or no traces under it.
    """
    if not place.is_dir():
        if not place.exists():
            raise UserError("traces", place, "no such file or folder: name a traces.jsonl, or a run's folder")
        return [place]
    found = sorted({path for pattern in _PATTERNS for path in place.glob(pattern) if path.is_file()})
    if not found:
        raise UserError("traces", place, f"no {NAME} in it: training and `scout eval run` write them")
    return found


def stream(path: Path, on_bytes: Callable[[int], object] = lambda _: None) -> Iterator[Found | TornLine]:
    """The traces of a file in order; `TornLine` last, where the last line has no end and is no trace.

    Args:
        on_bytes: told the length in bytes of every line read.

    Raises:
        UserError: any other line is no trace; names file and line.
    """
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES):
            number += 1
            on_bytes(len(raw))
            ended = raw.endswith(b"\n")
            if not ended and len(raw) == MAX_LINE_BYTES:
                raise _bad(path, number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
            try:
                trace = _DECODER.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                if ended:
                    raise _bad(path, number, error) from error
                yield TornLine(path, number)
                return
            yield Found(path, number, trace)


def _bad(path: Path, number: int, what: object) -> UserError:
    return UserError(f"{path}:{number}", what, "is no trace: name a file of traces, or mend that line")
