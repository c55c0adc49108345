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
        timeout_s: longest time for one search, waiting included; beyond it the action is an infra error.
        max_body_bytes: larger request bodies get a 413.
        max_response_bytes: larger answers become a 413 that asks for less.
        max_actions: actions or queries in one request.
        max_queue: searches running or waiting in one worker; beyond it a request gets a 503.
        max_connections: of one worker; further ones get a 503 and are closed.
        read_timeout_s: longest time from a request's first byte to its last.
        drain_s: longest time for what was accepted before a stop.
        cache_bytes: rendered observations kept in each worker.
        token_env: environment variable with the bearer token; the token itself is never in here.
        threads: of one worker, for searches that are long or many.
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
    max_response_bytes: int = 64 << 20
    max_actions: int = 1024
    max_queue: int = 2048
    max_connections: int = 4096
    read_timeout_s: float = 30.0
    drain_s: float = 30.0
    cache_bytes: int = 16 << 20
    token_env: str = ""
    threads: int = 2
    wiki: WikiSettings | None = None
    record: Path | None = None
    replay: Path | None = None
