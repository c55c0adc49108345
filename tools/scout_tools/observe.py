"""From an action to an observation: parse, search, render, and say honestly what happened."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from typing import Any

from scout_protocol.dialect import get_dialect
from scout_protocol.observation import Document, neutralise, render, render_hint, render_unavailable
from scout_protocol.turn import Action, Malformed, parse
from scout_protocol.wire import ObservationRequest, ObservationResponse, RetrieveRequest
from scout_tools.backends.base import Backend, BackendError
from scout_tools.settings import Settings

# (observation, done, valid)
Outcome = tuple[str | dict[str, Any], bool, bool]


class Observer:
    """Answers the two kinds of request on one backend, and counts what it did."""

    def __init__(self, settings: Settings, backend: Backend) -> None:
        self.settings, self.backend = settings, backend
        self.dialect = get_dialect(settings.dialect)
        self.actions: Counter[str] = Counter()
        self.infra_errors: Counter[str] = Counter()

    async def observe(self, request: ObservationRequest) -> ObservationResponse:
        """One outcome per action. An outage of the backend is an outcome too, never an exception."""
        start = time.perf_counter()
        finish = request.finish or [False] * len(request.actions)
        if len(request.actions) == 1:
            outcomes = [await self._act(request.actions[0], finish[0])]
        else:
            # One search per action, so that an outage marks exactly the actions it hit.
            outcomes = await asyncio.gather(*map(self._act, request.actions, finish))
        return ObservationResponse(
            observations=[observation for observation, _, _ in outcomes],
            dones=[done for _, done, _ in outcomes],
            valids=[valid for _, _, valid in outcomes],
            processing_time_ms=(time.perf_counter() - start) * 1000.0,
        )

    async def retrieve(self, request: RetrieveRequest) -> dict[str, Any]:
        """Search-R1's answer: the documents of each query, with scores where asked for.

        Raises:
            BackendError: a query could not be answered; this shape has no place for a partial outage.
        """
        topk = request.topk or self.settings.topk
        found = await asyncio.gather(*(self._search(query, topk) for query in request.queries))
        self.actions["retrieve"] += len(request.queries)
        rows: list[list[dict[str, Any]]] = []
        for documents in found:
            shown = [{"id": d.id, "contents": neutralise(f'"{d.title}"\n{d.text}')} for d in documents]
            if request.return_scores:
                scored = zip(shown, documents, strict=True)
                rows.append([{"document": row, "score": document.score} for row, document in scored])
            else:
                rows.append([dict(row) for row in shown])
        return {"result": rows}

    async def _act(self, action: str, finish: bool) -> Outcome:
        if finish:  # verl-tool closes a trajectory with actions [""] and finish [true]
            self.actions["finish"] += 1
            return "", True, True
        turn = parse(action, self.dialect)
        self.actions[turn.action.value] += 1
        if turn.action is Action.ANSWER:
            return "", True, True
        if turn.action is Action.MALFORMED:
            reason = turn.reason or Malformed.NO_ACTION
            return {"obs": render_hint(reason, self.dialect), "invalid_reason": reason.value}, False, False
        try:
            documents = await self._search(turn.text, self.settings.topk)
        except BackendError as error:
            return self._unavailable(error), False, False
        return render(documents, self.dialect, self.settings.style, self.settings.max_chars), False, True

    async def _search(self, query: str, topk: int) -> list[Document]:
        """Documents for one query; whatever goes wrong leaves as a counted `BackendError`."""
        try:
            async with asyncio.timeout(self.settings.timeout_s):
                (documents,) = await self.backend.search([query], topk)
            return documents
        except TimeoutError as error:
            failure = BackendError("timeout", f"no answer within {self.settings.timeout_s} s")
            cause: Exception = error
        except BackendError as error:
            failure, cause = error, error
        except Exception as error:
            # A bug in a backend is an outage for the trajectory as well: it is no evidence about the policy.
            failure, cause = BackendError(f"internal:{type(error).__name__}", str(error)), error
        self.infra_errors[failure.kind] += 1
        print(f"scout serve: {self.backend.name}: {failure}", file=sys.stderr, flush=True)
        raise failure from cause

    def _unavailable(self, error: BackendError) -> dict[str, Any]:
        return {"obs": render_unavailable(self.dialect), "infra_error": 1.0, "error_kind": error.kind}
