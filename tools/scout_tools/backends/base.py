"""What a search backend is: queries in, documents out, and every outage told as a `BackendError`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from scout_protocol.observation import Document

# Whoever calls `search` may put a dict here first; the backend notes in it how this search was answered:
# ``cache`` (lru | store | shared | record | replay | miss), ``upstream_calls``. Tasks copy the context, not
# the dict.
SEARCH_FACTS: ContextVar[dict[str, Any] | None] = ContextVar("scout_search_facts", default=None)

# Totals by name; see `Observable.counters`.
Counters = defaultdict[str, float]


def note(**facts: Any) -> None:
    """Tell the caller of this search how it was answered; does nothing where nobody asked."""
    asked = SEARCH_FACTS.get()
    if asked is not None:
        asked.update(facts)


class BackendError(Exception):
    """The backend could not answer. It is an outage, never an empty result.

    Args:
        kind: a short, countable word (``timeout``, ``rate_limited``, ``index_unreadable``, …).
        detail: what happened, for the log; the policy never sees it.
    """

    def __init__(self, kind: str, detail: str) -> None:
        self.kind, self.detail = kind, detail
        super().__init__(f"{kind}: {detail}")


class Backend(Protocol):
    """A source of documents. One instance per worker process, used from its event loop."""

    @property
    def name(self) -> str:
        """A short name for logs and /health."""
        ...

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same query may get another answer: part of every cache key and trace."""
        ...

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """The best ``topk`` documents for each query, best first; no hits is an empty list.

        Raises:
            BackendError: any of the queries could not be answered.
        """
        ...

    async def ready(self) -> bool:
        """Whether a search would be answered now. Never raises."""
        ...

    async def close(self) -> None:
        """Give back what the backend holds."""
        ...


class Observable(Protocol):
    """What a backend may offer besides; ask with `counters_of` and `facts_of`, bm25 has neither."""

    def counters(self) -> dict[str, float]:
        """Totals of this process since its start, which only grow (Prometheus counters).

        Names are snake_case words with the unit at the end where there is one; a label stands after a colon:
        ``cache_hits:lru``, ``cache_hits:store``, ``cache_hits:shared``, ``cache_misses``, ``cache_errors``,
        ``upstream_calls``, ``upstream_failures:rate_limited``, ``upstream_wait_seconds:pace`` …
        """
        ...

    def facts(self) -> dict[str, Any]:
        """What an operator must see in /health: the upstream, the proxy, TLS exceptions."""
        ...


def counters_of(backend: Backend) -> dict[str, float]:
    """The backend's counters; empty where it has none."""
    ask = getattr(backend, "counters", None)
    return dict(ask()) if ask is not None else {}


def facts_of(backend: Backend) -> dict[str, Any]:
    """The backend's facts for /health; empty where it has none."""
    ask = getattr(backend, "facts", None)
    return dict(ask()) if ask is not None else {}
