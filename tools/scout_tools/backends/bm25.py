"""BM25 over a memory-mapped tantivy index (k1 = 1.2, b = 0.75: tantivy's constants).

All workers map the same files, so the pages are in memory once. A few short searches in each turn of the
event loop run where they stand: to hand one to a thread and back costs a quarter of its time. The rest go to
a small thread pool; tantivy releases the interpreter lock while it works.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from scout_protocol.observation import Document
from scout_tools import stopwords
from scout_tools.analyzer import is_tantivy_error
from scout_tools.backends.base import BackendError
from scout_tools.index import Stored
from scout_tools.index_files import DamagedError
from scout_tools.index_open import OpenIndex
from scout_tools.stopwords import COMMON_FROM, rarer_terms, search_terms

MAX_QUERY_TERMS = 256  # a runaway turn is not a query; its first terms are searched
# Searches in one turn of the event loop: 10 ms of questions, 0.1 s of the worst that may run in place.
_IN_PLACE = 8
_SHORT = 200  # characters of a query that may run in place
_FEW = 20  # passages asked for
_STORED = msgspec.msgpack.Decoder(Stored)
_MAX_TIED = 1000  # ties beyond this many hits are left in tantivy's order


class BM25Backend:
    """Search one index.

    Args:
        index: folder made by ``scout index build``, or one that is open already.
        threads: for searches that do not run in place.
        stop_words: words that queries do without; with none, common words stay as well.
        common_from: passages from which on common words go (`scout_tools.stopwords.rarer_terms`).

    Raises:
        UserError: see `OpenIndex`.
    """

    name = "bm25"
    keep_s = float("inf")  # an opened index never changes

    def __init__(
        self,
        index: Path | OpenIndex,
        threads: int = 2,
        stop_words: Collection[str] = stopwords.STOP_WORDS,
        common_from: int = COMMON_FROM,
    ) -> None:
        opened = index if isinstance(index, OpenIndex) else OpenIndex(index)
        self.meta, self._files, self._stop_words = opened.meta, opened.files, stop_words
        self._analyzer, self._schema, self._searcher = opened.analyzer, opened.schema, opened.searcher
        self._in_place = 0  # searches in this turn of the event loop
        self._handed_over = 0  # searches that a thread has yet to end
        self._drops_common = bool(stop_words) and self.meta.n_documents >= common_from
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="bm25")

    @property
    def fingerprint(self) -> str:
        return f"bm25:{self.meta.fingerprint}:{stopwords.VERSION if self._stop_words else 'all'}"

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The best documents per query; see `Backend.search`."""
        loop = asyncio.get_running_loop()
        short = len(queries) == 1 and len(queries[0]) <= _SHORT and topk <= _FEW
        # Behind one that waits for a thread all wait for it: whoever came first is answered first.
        if not short or self._handed_over or self._in_place >= _IN_PLACE:
            self._handed_over += 1
            try:
                return await loop.run_in_executor(self._pool, self.search_now, queries, topk)
            finally:
                self._handed_over -= 1
        if not self._in_place:
            loop.call_soon(self._next_turn)
        self._in_place += 1
        return self.search_now(queries, topk)

    def search_now(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The same, in the calling thread."""
        with _outages():
            self._files.watch()
            return [self._one(query, topk) for query in queries]

    async def ready(self) -> bool:
        """Whether a document can be found and read now; a matching count alone says nothing."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._pool, self._probe)
        except (BackendError, RuntimeError):  # RuntimeError: the pool is closed
            return False

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _next_turn(self) -> None:
        self._in_place = 0

    def _probe(self) -> bool:
        import tantivy

        with _outages():
            self._files.watch()
            hits = self._searcher.search(tantivy.Query.all_query(), limit=1, count=False).hits
            documents = [self._stored(address) for _, address in hits]
        return bool(documents) or self.meta.n_documents == 0

    def _one(self, query: str, topk: int) -> list[Document]:
        import tantivy

        # A set of terms: repeating a word in a question says nothing about the document (recall is the same).
        terms = search_terms(self._analyzer.analyze(query), self._stop_words, MAX_QUERY_TERMS)
        if not terms or topk < 1:
            return []
        if self._drops_common:
            terms = rarer_terms(terms, self._passages_with, self.meta.n_documents)
        # Built from terms, so that no character of the query is ever syntax.
        should = tantivy.Occur.Should
        clauses = [(should, tantivy.Query.term_query(self._schema, "body", term, "freq")) for term in terms]
        boolean = tantivy.Query.boolean_query(clauses)
        # Some more than asked for cost nothing, and settle most ties in one search.
        limit = topk + 16
        hits = self._searcher.search(boolean, limit=limit, count=False).hits
        # Ties across the cut would depend on how segments were merged: take all of them, order by ordinal.
        while len(hits) == limit and hits[topk - 1][0] == hits[-1][0] and limit < _MAX_TIED:
            limit = min(limit * 4, _MAX_TIED)
            hits = self._searcher.search(boolean, limit=limit, count=False).hits
        if len(hits) > topk:
            worst = hits[topk - 1][0]
            hits = [hit for hit in hits if hit[0] >= worst]
        ranked = [(score, self._stored(address)) for score, address in hits]
        ranked.sort(key=lambda hit: (-hit[0], hit[1].ordinal))
        return [Document(s.id, s.title, s.text, score, s.url) for score, s in ranked[:topk]]

    def _passages_with(self, term: str) -> int:
        return int(self._searcher.doc_freq("body", term))

    def _stored(self, address: Any) -> Stored:
        return _STORED.decode(bytes(self._searcher.doc(address)["passage"][0]))


@contextmanager
def _outages() -> Iterator[None]:
    """Turn what a damaged index raises into a `BackendError`."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, (OSError, msgspec.DecodeError, DamagedError)) or is_tantivy_error(error):
            raise BackendError("index_unreadable", " ".join(str(error).split())) from error
        raise
