"""The Wikipedia gateway with one answer in its cache: cache hits of that backend, and no call to anybody."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

from scout_protocol.errors import UserError
from scout_protocol.observation import Document
from scout_tools.backends.wiki_options import WikiSettings
from scout_tools.backends.wiki_text import normalise_query
from scout_tools.backends.wikipedia import fingerprint
from scout_tools.bench import servers
from scout_tools.cache import Entry, Key, encode_entry
from scout_tools.cache_store import open_store

_TOPK, _CHARS = 3, 1000  # 3 KB of observation


@contextmanager
def serve(work: Path, query: str, workers: int) -> Iterator[servers.Running]:
    """The gateway, after it has answered ``query`` from its store once.

    Raises:
        UserError: it does not start, or would have asked Wikipedia.
    """
    folder = work / "wiki-cache"
    shutil.rmtree(folder, ignore_errors=True)
    asyncio.run(_fill(folder, query))
    nowhere = ("--proxy", "http://127.0.0.1:9")  # should anything be missing: an error, and no call
    options = ("--backend", "wikipedia", "--cache-dir", folder, *nowhere, "--workers", workers)
    contact = {"SCOUT_WIKI_CONTACT": "bench@example.org"}
    with servers.scout(work, *options, name="wikipedia", **contact) as server:
        action = {"trajectory_ids": ["bench"], "actions": [f"<search>{query}</search>"]}
        request = Request(f"{server.url}/get_observation", json.dumps(action).encode())  # noqa: S310  # our own
        with build_opener(ProxyHandler({})).open(request, timeout=30) as response:
            level = response.headers.get("x-cache")
        if level != "store":
            raise UserError("wikipedia", level, "answered a query that stands in its store")
        yield server


async def _fill(folder: Path, query: str) -> None:
    settings = WikiSettings()
    key = Key(normalise_query(query), settings.language, _TOPK, fingerprint(settings))
    text = ("0123456789 " * (_CHARS // 11 + 1))[:_CHARS]
    documents = [
        Document(str(rank), f"Title {rank}", text, 1.0 / rank, f"https://en.wikipedia.org/wiki/{rank}")
        for rank in range(1, _TOPK + 1)
    ]
    entry = Entry(key.query, key.language, key.topk, key.version, time.time(), 0.0, documents)
    store = open_store(folder, None, settings.cache_gb)
    try:
        await store.put(key.digest(), encode_entry(entry))
    finally:
        await store.close()
