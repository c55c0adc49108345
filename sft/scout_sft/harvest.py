"""`scout sft harvest`: demonstrations from the real tool server, played by the plan that a row carries.

Every finished question is one JSON line in ``OUT.jsonl``, so a kill loses nothing; when all questions are
finished the kept ones become the parquet file. An outage is not a result: such a question is tried again,
and if the server stays away the command ends with what it has and says how to go on.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episodes
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import neutralise
from scout_protocol.records import Author, RLRow, SFTRow, SFTTurn, StopReason, Trace
from scout_protocol.turn import Action, parse
from scout_sft.plan import PlannedTurn, PlanPolicy, choose_stops, plan
from scout_sft.progress import Progress
from scout_sft.rows import write_demos


@dataclass(frozen=True, slots=True)
class HarvestSettings:
    """What a user chooses.

    ``early_stop_share``: of the demonstrations that could go on after a search, the share that answers there,
    too early, with what that search yields. ``keep_unfound``: keep those whose answer no result holds.
    """

    server: str = "http://127.0.0.1:5000"
    dialect: str = "search-r1"
    early_stop_share: float = 0.6
    keep_unfound: bool = False
    seed: int = 0
    concurrency: int = 64
    call_timeout_s: float = 30.0
    retries: int = 3
    retry_wait_s: float = 2.0

    def __post_init__(self) -> None:
        if not 0 <= self.early_stop_share <= 1:
            raise UserError("--early-stop-share", self.early_stop_share, "must be between 0 and 1")
        for name in ("concurrency", "call_timeout_s", "retry_wait_s"):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')}", getattr(self, name), "must be greater than 0")
        if self.retries < 0:
            raise UserError("--retries", self.retries, "must not be negative")
        get_dialect(self.dialect)


# Nothing that the plan did: the tool was away, or too slow.
AGAIN = frozenset({StopReason.INFRA_ERROR, StopReason.TURN_TIMEOUT, StopReason.TRAJECTORY_TIMEOUT})


class Finished(msgspec.Struct):
    """One line of the harvest file: a demonstration, or why the question gave none."""

    id: str
    row: SFTRow | None = None
    rejected: str = ""


@dataclass(frozen=True, slots=True)
class HarvestResult:
    """Counts of a finished harvest."""

    kept: int
    early: int
    rejected: dict[str, int]
    searches: dict[int, int]
    played: int
    resumed: int


def demo_from_trace(
    row: RLRow, trace: Trace, turns: Sequence[PlannedTurn], complete: bool, dialect: Dialect
) -> SFTRow:
    """A demonstration from a played trajectory, checked against the plan that it was played from.

    Raises:
        ValueError: the trajectory is not the plan: its text is the reason.
    """
    if trace.stop_reason is not StopReason.ANSWER:
        raise ValueError(f"stopped: {trace.stop_reason.value}")
    spans = trace.spans[1:]
    policy = [span for span in spans if span.author is Author.POLICY]
    if len(policy) != len(turns) or len(spans) != 2 * len(turns) - 1:
        raise ValueError("turns missing")
    if not all(call.valid for call in trace.tool_calls):
        raise ValueError("search refused by the tool")
    for span, meant in zip(policy, turns, strict=True):
        parsed = parse(span.text, dialect)
        if (parsed.action, parsed.text, parsed.think) != (meant.action, meant.content, meant.think):
            raise ValueError("does not parse back")
        if parsed.end != len(span.text):
            raise ValueError("text after the action")
    seen = _plain("\n".join(span.text for span in spans if span.author is Author.TOOL))
    demo_turns = [
        SFTTurn("policy", span.text, True)
        if span.author is Author.POLICY
        else SFTTurn("tool", span.text, False)
        for span in spans
    ]
    chosen = "".join(turn.text for turn in demo_turns)
    return SFTRow(
        messages=[*row.prompt, {"role": "assistant", "content": chosen}],
        chosen=chosen,
        question=row.question,
        golden_answers=list(row.golden_answers),
        found_answer_context=_plain(turns[-1].content) in seen,
        turns=demo_turns,
        data_source=row.data_source,
        id=row.id,
        n_searches=sum(turn.action is Action.SEARCH for turn in turns),
        complete=complete,
    )


def _plain(text: str) -> str:
    """Lower case, single spaces, markers inert as in an observation."""
    return " ".join(neutralise(text).casefold().split())


def harvest(rows: Sequence[RLRow], out: Path, settings: HarvestSettings) -> HarvestResult:
    """Play every row that has a plan and write the demonstrations to ``out`` (parquet), in the rows' order.

    Raises:
        UserError: no row has a plan, ids repeat, the harvest file belongs to another harvest or is damaged,
            the server is not there or goes away and stays away, nothing was kept.
    """
    planned = [row for row in rows if row.extra_info.get("oracle")]
    if not planned:
        raise UserError(
            "--rows", f"{len(rows)} rows", "none has extra_info.oracle: make them with `scout world`"
        )
    repeated = [row_id for row_id, n in Counter(row.id for row in planned).items() if n > 1]
    if repeated:
        raise UserError(
            "--rows", f"id {repeated[0]}", f"occurs more than once (so do {len(repeated) - 1} others)"
        )
    stops = choose_stops(planned, settings.early_stop_share, settings.seed)
    plans = {row.id: plan(row, stops.get(row.id)) for row in planned}
    journal = Journal(out.with_name(out.name + ".jsonl"), _fingerprint(planned, settings))
    resumed = len(journal.finished)
    with journal:
        asyncio.run(_play(planned, plans, stops, journal, settings))
    finished = [journal.finished[row.id] for row in planned]
    kept = [item.row for item in finished if item.row is not None]
    rejected = Counter(item.rejected for item in finished if item.row is None)
    if not kept:
        reasons = ", ".join(f"{reason}: {n}" for reason, n in rejected.most_common())
        raise UserError("demonstrations", "none kept", f"all {len(finished)} were rejected ({reasons})")
    write_demos(out, kept)
    return HarvestResult(
        kept=len(kept),
        early=sum(not row.complete for row in kept),
        rejected=dict(rejected),
        searches=dict(sorted(Counter(row.n_searches for row in kept).items())),
        played=len(finished) - resumed,
        resumed=resumed,
    )


async def _play(
    rows: Sequence[RLRow],
    plans: dict[str, list[PlannedTurn]],
    stops: dict[str, int],
    journal: Journal,
    settings: HarvestSettings,
) -> None:
    """Play what is not finished, round after round, until all is or the server stays away."""
    dialect = get_dialect(settings.dialect)
    budget = EpisodeSettings(dialect=settings.dialect, max_turns=max(len(turns) for turns in plans.values()))
    policy = PlanPolicy(plans, settings.dialect)
    labels = TraceLabels(model=policy.name, stage="harvest")
    failures_in_a_row, wait_s = 0, settings.retry_wait_s
    with Progress("demonstrations", len(rows), len(journal.finished)) as progress:
        async with HttpTools(settings.server, settings.call_timeout_s, settings.concurrency) as tools:
            while pending := [row for row in rows if row.id not in journal.finished]:
                before, lost, kind = len(journal.finished), 0, ""
                # run_episodes is an async generator: closing it cancels the episodes in flight
                episodes = cast(
                    "AsyncGenerator[tuple[int, Trace], None]",
                    run_episodes(pending, policy, tools, budget, labels, settings.concurrency),
                )
                async for index, trace in episodes:
                    row = pending[index]
                    if trace.stop_reason in AGAIN:
                        lost += 1
                        kind = (
                            trace.tool_calls[-1].error_kind if trace.tool_calls else trace.stop_reason.value
                        )
                        if lost > settings.concurrency and lost > len(journal.finished) - before:
                            break  # the server is gone; asking it all the other questions helps nobody
                        continue
                    journal.add(_finish(row, trace, plans[row.id], row.id not in stops, dialect, settings))
                    progress.update(len(journal.finished), f"{lost} to try again" if lost else "")
                await episodes.aclose()
                if not lost:
                    continue
                failures_in_a_row = 0 if len(journal.finished) > before else failures_in_a_row + 1
                if failures_in_a_row > settings.retries:
                    done, left = len(journal.finished), len(rows) - len(journal.finished)
                    raise UserError(
                        "--server",
                        f"{settings.server} ({kind})",
                        f"does not answer: {done} questions are finished and kept, {left} are not; "
                        "start it with `scout serve` and run the same command to go on",
                    )
                await asyncio.sleep(wait_s * 2**failures_in_a_row if failures_in_a_row else wait_s)


def _finish(
    row: RLRow,
    trace: Trace,
    turns: Sequence[PlannedTurn],
    complete: bool,
    dialect: Dialect,
    settings: HarvestSettings,
) -> Finished:
    try:
        demo = demo_from_trace(row, trace, turns, complete, dialect)
    except ValueError as error:
        return Finished(row.id, rejected=str(error))
    if not demo.found_answer_context and not settings.keep_unfound:
        # It would teach to answer what no page said.
        return Finished(row.id, rejected="answer not in the results")
    return Finished(row.id, row=demo)


class Journal:
    """The harvest file: a first line that says whose it is, then one line per finished question.

    A line cut off by a kill is dropped and its question played again.

    Raises:
        UserError: the file belongs to another harvest, or a line in the middle is damaged.
    """

    def __init__(self, path: Path, mark: dict[str, Any]) -> None:
        self.path = path
        self.finished: dict[str, Finished] = {}
        self._encoder = msgspec.json.Encoder()
        good = self._read(mark) if path.exists() else 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("r+b" if path.exists() else "w+b")
        except OSError as error:
            raise UserError("harvest file", path, f"cannot be written: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise UserError("harvest file", path, "another harvest is writing to it") from error
        self._file.truncate(good)
        self._file.seek(good)
        if not good:
            self._write(json.dumps(mark).encode())

    def _read(self, mark: dict[str, Any]) -> int:
        """Take in the complete lines; returns where they end, in bytes."""
        data = self.path.read_bytes()
        end = data.rfind(b"\n") + 1
        lines = data[:end].splitlines()
        if not lines:
            return 0
        decoder = msgspec.json.Decoder(Finished)
        try:
            known = json.loads(lines[0])
        except ValueError as error:
            raise UserError("harvest file", f"{self.path}:1", "is damaged: remove the file") from error
        if known != mark:
            other = sorted(k for k in mark if not isinstance(known, dict) or known.get(k) != mark[k])
            raise UserError(
                "harvest file",
                self.path,
                f"belongs to a harvest with other {', '.join(other)}: remove it or choose another --out",
            )
        for number, line in enumerate(lines[1:], start=2):
            try:
                item = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise UserError(
                    "harvest file", f"{self.path}:{number}", "is damaged: remove that line to play it again"
                ) from error
            self.finished[item.id] = item
        return end

    def add(self, item: Finished) -> None:
        """Write down a finished question."""
        self._write(self._encoder.encode(item))
        self.finished[item.id] = item

    def _write(self, line: bytes) -> None:
        try:
            self._file.write(line + b"\n")
            self._file.flush()
        except OSError as error:
            raise UserError("harvest file", self.path, f"cannot be written: {error.strerror}") from error

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


def _fingerprint(rows: Sequence[RLRow], settings: HarvestSettings) -> dict[str, Any]:
    digest = hashlib.sha256()
    for row in rows:
        digest.update(
            msgspec.json.encode([row.id, row.prompt, row.golden_answers, row.extra_info.get("oracle")])
        )
    return {
        "rows": digest.hexdigest(),
        "dialect": settings.dialect,
        "early_stop_share": settings.early_stop_share,
        "keep_unfound": settings.keep_unfound,
        "seed": settings.seed,
    }
