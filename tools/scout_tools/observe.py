"""From an action to an observation: parse, search, render, and say honestly what happened.

Every request goes through two steps. `Observer.begin` does what needs no waiting: answers, hints, and queries
whose observation is kept ready. `Observer.complete` searches for the rest.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

import msgspec

from scout_protocol.dialect import get_dialect
from scout_protocol.observation import Document, neutralise, render, render_hint, render_unavailable
from scout_protocol.turn import Action, Malformed, Turn, parse
from scout_protocol.wire import ObservationRequest, RetrieveRequest, WireError, encode
from scout_tools import log
from scout_tools.backends.base import SEARCH_FACTS, Backend, BackendError
from scout_tools.counters import HISTOGRAM, PLACE, Counters, Row
from scout_tools.rendered import Rendered, normalise
from scout_tools.settings import Settings

# (observation as JSON, done, valid, cache level that answered; empty where nothing was searched)
Outcome = tuple[bytes, bool, bool, bytes]
Begun = Outcome | str  # or the query that has to be searched first

_FLAG = (b"false", b"true")
_EMPTY = b'""'
_HIT, _MISS = (
    PLACE['scout_cache_hits_total{level="rendered"}'],
    PLACE['scout_cache_misses_total{level="rendered"}'],
)
_SEARCH, _QUEUE = PLACE['scout_actions_total{action="search"}'], PLACE["scout_queue_depth"]
_SEARCH_TIME = HISTOGRAM["scout_search_seconds"]
MAX_DOCUMENTS = 10_000  # of one /retrieve request: queries times topk


class BusyError(Exception):
    """The queue is full: turning this request away now keeps the others' answers in time."""


class TooMuchError(Exception):
    """The answer would be over the limit."""


class Observer:
    """Answers the two kinds of request on one backend, and counts what it did."""

    def __init__(self, settings: Settings, backend: Backend, row: Row | None = None) -> None:
        self.settings, self.backend = settings, backend
        self.row = row or Counters().rows[0]
        self.dialect = get_dialect(settings.dialect)
        # Only as long as the same query keeps its answer.
        self.rendered = Rendered(settings.cache_bytes, float(getattr(backend, "keep_s", 0.0)))
        self.waiting = 0  # searches running or waiting
        self._told: dict[str, tuple[float, int]] = {}  # kind of outage: when the log had it, how often since
        hints = {
            reason: {"obs": render_hint(reason, self.dialect), "invalid_reason": reason.value}
            for reason in Malformed
        }
        self._hints: dict[Malformed, Outcome] = {
            r: (encode(hint), False, False, b"") for r, hint in hints.items()
        }
        self._unavailable = render_unavailable(self.dialect)

    def begin(self, request: ObservationRequest) -> list[Begun]:
        """What is known now for each action: its outcome, or the query that must be searched.

        Raises:
            WireError: more actions than one request may hold.
        """
        actions, finish = request.actions, request.finish
        if len(actions) == 1:
            return [self._known(actions[0], bool(finish and finish[0]))]
        if len(actions) > self.settings.max_actions:
            raise WireError(
                "actions",
                f"has {len(actions)} items, more than the {self.settings.max_actions} of one request",
            )
        return list(map(self._known, actions, finish or [False] * len(actions)))

    async def complete(self, begun: list[Begun]) -> list[Outcome]:
        """Search what `begin` left open. An outage of the backend is an outcome too, never an exception.

        Raises:
            BusyError: too many searches wait already.
        """
        queries = [part for part in begun if isinstance(part, str)]
        if not queries:
            return cast(list[Outcome], begun)
        self._admit(len(queries))
        if len(queries) == 1:
            found = iter([await self._act(queries[0])])
        else:
            # One search per action, so that an outage marks exactly the actions it hit.
            found = iter(await asyncio.gather(*map(self._act, queries)))
        return [next(found) if isinstance(part, str) else part for part in begun]

    def body(self, outcomes: list[Outcome], started: float) -> bytes:
        """The response (`scout_protocol.wire.ObservationResponse`) around observations that are JSON already.

        Raises:
            TooMuchError: larger than a response may be.
        """
        took_ms = b"%.4f" % ((time.perf_counter() - started) * 1000.0)
        if len(outcomes) == 1:
            observation, done, valid, _ = outcomes[0]
            observations, dones, valids = observation, _FLAG[done], _FLAG[valid]
        else:
            observations = b",".join([observation for observation, _, _, _ in outcomes])
            dones = b",".join([_FLAG[done] for _, done, _, _ in outcomes])
            valids = b",".join([_FLAG[valid] for _, _, valid, _ in outcomes])
        if len(observations) > self.settings.max_response_bytes:
            raise TooMuchError
        return (
            b'{"observations":[%b],"dones":[%b],"valids":[%b],"processing_time_ms":%b,"queue_time_ms":0.0}'
            % (
                observations,
                dones,
                valids,
                took_ms,
            )
        )

    async def retrieve(self, request: RetrieveRequest) -> bytes:
        """Search-R1's answer: the documents of each query, with scores where asked for.

        Raises:
            BackendError: a query could not be answered; this shape has no place for a partial outage.
            BusyError: too many searches wait already.
            TooMuchError: larger than a response may be.
            WireError: more queries or documents than one request may ask for.
        """
        topk, n, limit = request.topk or self.settings.topk, len(request.queries), self.settings.max_actions
        if n > limit:
            raise WireError("queries", f"has {n} items, more than the {limit} of one request")
        if n * topk > MAX_DOCUMENTS:
            raise WireError(
                "topk", f"{n} queries of {topk} documents are more than the {MAX_DOCUMENTS} of one request"
            )
        # A normalised query has no line break, so no action meets one of these keys.
        head = f"\n{topk} {request.return_scores}\n"
        keys = [head + normalise(query) for query in request.queries]
        known = [self._look_up(key) for key in keys]
        missing = [i for i, part in enumerate(known) if part is None]
        if missing:
            self._admit(len(missing))
            found = await asyncio.gather(*(self._search(request.queries[i], topk) for i in missing))
            for i, documents in zip(missing, found, strict=True):
                known[i] = _retrieved(documents, request.return_scores)
                self._keep(keys[i], known[i] or b"", documents)
        self.row.add('scout_actions_total{action="retrieve"}', n)
        if sum(len(part or b"") for part in known) > self.settings.max_response_bytes:
            raise TooMuchError
        return b'{"result":[%b]}' % b",".join([part or b"[]" for part in known])

    def _known(self, action: str, finish: bool) -> Begun:
        if finish:  # verl-tool closes a trajectory with actions [""] and finish [true]
            self.row.add('scout_actions_total{action="finish"}')
            return _EMPTY, True, True, b""
        turn: Turn = parse(action, self.dialect)
        if turn.action is Action.SEARCH:
            self.row.values[_SEARCH] += 1.0
            query = normalise(turn.text)
            observation = self._look_up(query)
            # What the backend gets is the query as it was written.
            return turn.text if observation is None else (observation, False, True, b"rendered")
        self.row.add(f'scout_actions_total{{action="{turn.action.value}"}}')
        if turn.action is Action.ANSWER:
            return _EMPTY, True, True, b""
        return self._hints[turn.reason or Malformed.NO_ACTION]

    async def _act(self, query: str) -> Outcome:
        facts: dict[str, Any] = {}
        SEARCH_FACTS.set(facts)
        try:
            documents = await self._search(query, self.settings.topk)
        except BackendError as error:
            return self.outage(error.kind)
        settings = self.settings
        observation = encode(render(documents, self.dialect, settings.style, settings.max_chars))
        self._keep(normalise(query), observation, documents)
        return observation, False, True, str(facts.get("cache", "miss")).encode()

    def outage(self, kind: str) -> Outcome:
        """The outcome of an action that the backend could not answer."""
        outage = {"obs": self._unavailable, "infra_error": 1.0, "error_kind": kind}
        return encode(outage), False, False, b"miss"

    def _look_up(self, key: str) -> bytes | None:
        found = self.rendered.get(key)
        self.row.values[_MISS if found is None else _HIT] += 1.0
        return found

    def _keep(self, key: str, value: bytes, documents: list[Document]) -> None:
        # An empty result is kept only where it can never change.
        if documents or self.rendered.keep_s == float("inf"):
            self.rendered.put(key, value)

    def _admit(self, n: int) -> None:
        if self.waiting and self.waiting + n > self.settings.max_queue:
            self.row.add('scout_rejected_total{reason="queue_full"}')
            raise BusyError

    async def _search(self, query: str, topk: int) -> list[Document]:
        """Documents for one query; whatever goes wrong leaves as a counted `BackendError`."""
        start = time.perf_counter()
        self.waiting += 1
        self.row.values[_QUEUE] = self.waiting
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
        finally:
            self.waiting -= 1
            self.row.values[_QUEUE] = self.waiting
            self.row.observe(_SEARCH_TIME, time.perf_counter() - start)
        self._count_outage(failure)
        raise failure from cause

    def _count_outage(self, failure: BackendError) -> None:
        self.row.add(f'scout_infra_errors_total{{kind="{label_value(failure.kind)}"}}')
        now = time.monotonic()
        told, n_untold = self._told.get(failure.kind, (-1.0, 0))
        if now - told < 1.0:  # an outage under load would write thousands of the same line a second
            self._told[failure.kind] = (told, n_untold + 1)
            return
        self._told[failure.kind] = (now, 0)
        text = f"{self.backend.name}: {failure}" + (f" (and {n_untold} like it)" if n_untold else "")
        facts = {"backend": self.backend.name, "kind": failure.kind, "detail": failure.detail}
        log.say("error", "infra_error", text, **facts, untold=n_untold)


def label_value(kind: str) -> str:
    """A kind as a Prometheus label value; short, since kinds are words and not messages."""
    return "".join(c if c.isalnum() or c in "_:.-" else "_" for c in kind[:60])


def _retrieved(documents: list[Document], return_scores: bool) -> bytes:
    rows: list[Any] = [{"id": d.id, "contents": neutralise(f'"{d.title}"\n{d.text}')} for d in documents]
    if return_scores:
        scored = zip(rows, documents, strict=True)
        rows = [{"document": row, "score": document.score} for row, document in scored]
    return msgspec.json.encode(rows)
