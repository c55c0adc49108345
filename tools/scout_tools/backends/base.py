"""What a search backend is: queries in, documents out, and every outage told as a `BackendError`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from scout_protocol.observation import Document


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
