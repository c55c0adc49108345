"""`wiki_search`: a tool for verl-tool's own server; parsing, searching and rendering are Scout's.

Importable only where verl-tool is. Start that server with ``python -m scout_tools.verl_tool.launch``, which
registers the tool there; nothing of verl-tool is changed. SCOUT_WIKI_SEARCH_ARGS holds options as
`scout serve` takes them, e.g. ``--backend bm25 --index runs/hotpot/index --topk 3``; the default is
``--backend wikipedia``.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from verl_tool.servers.tools import base

from scout_protocol.dialect import get_dialect
from scout_protocol.turn import Action, parse
from scout_protocol.wire import ObservationRequest
from scout_tools.observe import BusyError, Observer
from scout_tools.serve import check_backend, make_parser, make_settings
from scout_tools.worker import make_backend

T = TypeVar("T")


class WikiSearch(base.BaseTool):  # type: ignore[misc]  # verl-tool has no types
    """A search per action. It keeps nothing per trajectory."""

    tool_type = "wiki_search"

    def __init__(self, num_workers: int = 1, **_: Any) -> None:
        super().__init__(num_workers)
        options = os.environ.get("SCOUT_WIKI_SEARCH_ARGS", "--backend wikipedia")
        settings = make_settings(make_parser().parse_args(shlex.split(options)))
        check_backend(settings)
        self.dialect = get_dialect(settings.dialect)
        # verl-tool calls from many threads; backends live in one event loop.
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="wiki_search", daemon=True).start()

        async def make() -> Observer:
            return Observer(settings, make_backend(settings))

        self._observer = self._wait(make())

    def get_usage_inst(self) -> str:
        """How the policy calls the tool."""
        search, answer = self.dialect.search, self.dialect.answer
        return (
            f"Write {search.open}your query{search.close} to search, and "
            f"{answer.open}your answer{answer.close} to answer."
        )

    def parse_action(self, action: str) -> tuple[str, bool]:
        """(the query or the answer, whether the action can be executed)."""
        turn = parse(action, self.dialect)
        return turn.text, turn.action is not Action.MALFORMED

    def conduct_action(
        self, trajectory_id: str, action: str, extra_field: dict[str, Any]
    ) -> tuple[str | dict[str, Any], bool, bool]:
        """(observation, done, valid), as Scout's own server answers; an outage is never an empty result."""
        return self._wait(self._observe(action, bool(extra_field.get("finish", False))))

    async def _observe(self, action: str, finish: bool) -> tuple[str | dict[str, Any], bool, bool]:
        request = ObservationRequest([""], [action], [finish])
        try:
            ((raw, done, valid, _),) = await self._observer.complete(self._observer.begin(request))
        except BusyError:
            raw, done, valid, _ = self._observer.outage("queue_full")
        return msgspec.json.decode(raw), done, valid

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


def register() -> None:
    """Make verl-tool's `get_tool_cls("wiki_search")` find the tool, as if its file stood in its folder."""
    base.register_tool(WikiSearch)
    if WikiSearch.tool_type not in base.ALL_TOOLS:
        base.ALL_TOOLS.append(WikiSearch.tool_type)
    sys.modules[f"verl_tool.servers.tools.{WikiSearch.tool_type}"] = sys.modules[__name__]
