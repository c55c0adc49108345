"""What one tool server is told at start; the same for all of its workers."""

from __future__ import annotations

from pathlib import Path

import msgspec

from scout_tools.backends.wiki_options import WikiSettings


class Settings(msgspec.Struct, frozen=True):
    """Options of the server.

    Attributes:
        topk: documents per search.
        max_chars: characters of one observation's body.
        timeout_s: longest time for one search; beyond it the action is an infra error.
        max_body_bytes: larger request bodies get a 413.
        wiki: options of the Wikipedia gateway; None with another backend.
        record: folder that keeps what the backend answers.
        replay: folder that answers in the backend's place.
    """

    index: Path = Path()
    backend: str = "bm25"
    dialect: str = "search-r1"
    style: str = "search_r1"
    topk: int = 3
    max_chars: int = 20_000
    timeout_s: float = 30.0
    max_body_bytes: int = 8 << 20
    threads: int = 2
    wiki: WikiSettings | None = None
    record: Path | None = None
    replay: Path | None = None
