"""A backend with one answer after a given time: it measures the server, not a search.

``scout serve --backend scout_tools.backends.fixed:make`` with SCOUT_FIXED_MS (default 0) and
SCOUT_FIXED_CHARS (default 3000) in the environment.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence

from scout_protocol.errors import UserError
from scout_protocol.observation import Document
from scout_tools.settings import Settings


class FixedBackend:
    """Answers every query with one document that repeats it.

    Args:
        delay_s: before the answer.
        n_chars: length of the document's text.
    """

    name = "fixed"
    fingerprint = "fixed:1"

    def __init__(self, delay_s: float, n_chars: int) -> None:
        self.delay_s, self._text = delay_s, ("0123456789 " * (n_chars // 11 + 1))[:n_chars]
        # With no delay rendered answers are kept, like any backend's hits; with one, every query takes it.
        self.keep_s = 0.0 if delay_s else float("inf")

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        """One document per query; see `Backend.search`."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        return [[Document("0", query[:100], self._text, 1.0)] for query in queries]

    async def ready(self) -> bool:
        return True

    async def close(self) -> None:
        return None


def make(settings: Settings) -> FixedBackend:
    """The backend that the environment describes.

    Raises:
        UserError: a variable is no number.
    """
    return FixedBackend(_number("SCOUT_FIXED_MS", 0.0) / 1000.0, int(_number("SCOUT_FIXED_CHARS", 3000.0)))


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e7:
        raise UserError(name, text, "must be a number, 0 or more")
    return value
