"""Wikipedia as a search backend: a cache, and behind it at most two polite calls for one action."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

from scout_protocol.errors import UserError
from scout_protocol.observation import Document
from scout_tools.backends.base import BackendError, Counters, note
from scout_tools.backends.mediawiki import (
    MAX_PAGES,
    Answer,
    AnswerError,
    Page,
    links_params,
    read_answer,
    search_params,
    title_params,
)
from scout_tools.backends.network import hide_password, is_insecure
from scout_tools.backends.wiki_client import WikiClient
from scout_tools.backends.wiki_options import WikiSettings
from scout_tools.backends.wiki_text import clean, first_sense, normalise_query, shorten
from scout_tools.cache import Cache, Key
from scout_tools.cache_store import open_store
from scout_tools.limiter import Gate
from scout_tools.limiter_locks import ByteLocks

VERSION = "1"  # raise it when the same answer of Wikipedia becomes another document
MARGIN_S = 0.25  # the backend gives up this much before the action does, so that it can say why
READY_S = 15.0  # a success this recent is proof enough


def fingerprint(settings: WikiSettings) -> str:
    """Part of every cache key: what makes the same query's answer another one."""
    return f"wikipedia:{VERSION}:{settings.host}:{settings.language}:{settings.summary_chars}"


class WikipediaBackend:
    """Search one Wikipedia.

    Args:
        timeout_s: of one action; nothing here takes longer.

    Raises:
        UserError: the proxy, the certificates or the cache are not usable.
    """

    name = "wikipedia"
    # Kept answers never expire in the store either; "no results" does, and is never kept rendered.
    keep_s = 300.0

    def __init__(self, settings: WikiSettings, timeout_s: float) -> None:
        self._settings = settings
        self._timeout_s = max(timeout_s - MARGIN_S, timeout_s * 0.8)
        self._counters: Counters = Counters(float)
        try:
            self._gate = Gate(settings.folder, settings.per_second, settings.in_flight, self._counters)
        except (OSError, sqlite3.Error) as error:
            remedy = f"cannot be used ({error}): choose another folder with --cache-dir"
            raise UserError("--cache-dir", settings.folder, remedy) from error
        self._client = WikiClient(settings, self._gate, self._counters)
        store = open_store(settings.folder, settings.redis, settings.cache_gb)
        flights = ByteLocks(settings.folder / "flights.lock")
        self._cache = Cache(store, flights, self._counters, settings.empty_ttl_s)
        self._asked_at = float("-inf")
        self._probing = asyncio.Lock()

    @property
    def fingerprint(self) -> str:
        return fingerprint(self._settings)

    def counters(self) -> dict[str, float]:
        return dict(self._counters)

    def facts(self) -> dict[str, Any]:
        s = self._settings
        facts: dict[str, Any] = {
            "upstream": s.endpoint,
            "proxy": hide_password(self._client.proxy),
            "insecure_tls_hosts": [s.host] if is_insecure(s.host, s.insecure_tls_hosts) else [],
            "paused_s": round(self._gate.state.paused_s(), 3),
            "circuit": "closed" if self._gate.state.closed() else "open",
        }
        return facts

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The best pages per query; at most 20, which is what one call can give. Scores are 1 / rank."""
        if len(queries) == 1:
            return [await self._search(queries[0], topk)]
        return list(await asyncio.gather(*(self._search(query, topk) for query in queries)))

    async def ready(self) -> bool:
        """Whether Wikipedia answers: it did within the last seconds, or it is asked now."""
        loop = asyncio.get_running_loop()
        if not self._gate.state.closed():
            return False
        async with self._probing:
            if loop.time() - self._asked_at < READY_S:
                return True
            try:
                deadline = loop.time() + min(5.0, self._timeout_s)
                await self._call({"action": "query", "format": "json", "meta": "siteinfo"}, deadline)
            except BackendError as error:
                print(f"scout serve: wikipedia: not ready: {error}", file=sys.stderr, flush=True)
                return False
            return True

    async def close(self) -> None:
        await self._cache.close()
        await self._client.close()
        self._gate.close()

    async def _search(self, query: str, topk: int) -> list[Document]:
        text = normalise_query(query)
        if not text or topk < 1:  # nothing that a search engine could look for
            return []
        key = Key(text, self._settings.language, min(topk, MAX_PAGES), self.fingerprint)
        kept = self._cache.recent(key)
        if kept is not None:
            return kept
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        return await self._cache.fetch(key, lambda until: self._ask(text, key.topk, until), deadline)

    async def _ask(self, query: str, topk: int, deadline: float) -> list[Document]:
        """Ask Wikipedia: one call, and a second one only where the first names what to ask instead."""
        answer = await self._answer(search_params(query, topk), deadline)
        note(upstream_calls=1)
        suggestion = normalise_query(answer.suggestion)
        if not answer.pages and suggestion and suggestion != query:
            answer = await self._answer(search_params(suggestion, topk), deadline)
            note(upstream_calls=2)
            pages = [page for page in answer.pages if not page.is_disambiguation]
        else:
            pages = await self._resolved(answer.pages, deadline)
        documents: list[Document] = []
        for page in pages:
            summary = shorten(clean(page.extract), self._settings.summary_chars)
            if summary:
                score = 1.0 / (len(documents) + 1)
                documents.append(Document(page.id, page.title, summary, score, page.url))
        return documents[:topk]

    async def _resolved(self, pages: list[Page], deadline: float) -> list[Page]:
        """A disambiguation page says nothing: if it is the best hit, its first sense takes its place."""
        rest = [page for page in pages if not page.is_disambiguation]
        if not pages or not pages[0].is_disambiguation:
            return rest
        sense = first_sense(pages[0].extract, pages[0].title)
        for page in rest:
            if page.title == sense:
                return [page, *(other for other in rest if other is not page)]
        if sense:
            found = (await self._answer(title_params(sense), deadline)).pages
        else:
            links = (await self._answer(links_params(pages[0].title), deadline)).pages
            base = pages[0].title.partition(" (")[0].lower()
            found = [page for page in links if page.title.lower().startswith(base)][:1]
        note(upstream_calls=2)
        first = [page for page in found if not page.is_disambiguation]
        known = {page.id for page in first}
        return first + [page for page in rest if page.id not in known]

    async def _answer(self, params: dict[str, str], deadline: float) -> Answer:
        body = await self._call(params, deadline)
        try:
            return read_answer(body)
        except AnswerError as error:
            raise BackendError("bad_response", str(error)) from error

    async def _call(self, params: dict[str, str], deadline: float) -> dict[str, Any]:
        body = await self._client.call(params, deadline)
        self._asked_at = asyncio.get_running_loop().time()
        return body
