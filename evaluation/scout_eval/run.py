"""Run one evaluation: rows, a policy and a tool server in; traces and a summary out. Resumable."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console

from scout_agent.client import HttpTools, Tools
from scout_agent.controls import CONTROLS, BlankTools, ShuffledTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episodes
from scout_data.rows import read_rows
from scout_eval.metrics import FACETS, MAX_INFRA_SHARE, check_infra, outcome, summarise
from scout_eval.policy_factory import PolicyOptions, check_spec, fingerprint, open_policy
from scout_eval.progress import EvalProgress
from scout_eval.provenance import commit, file_sha256, versions
from scout_eval.summary import SUMMARY, TRACES, Identity, Summary, check_identity, write_json
from scout_eval.trace_log import TraceLog, question_key, read_traces
from scout_protocol.errors import UserError
from scout_protocol.prompt import recognise
from scout_protocol.records import RLRow, StopReason, Trace
from scout_reward.score import score_trace


def default_settings() -> EpisodeSettings:
    """The episode of the command line's defaults: time limits that a busy machine does not reach."""
    return EpisodeSettings(turn_timeout_s=120.0, trajectory_timeout_s=600.0)


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """One evaluation. ``out`` is the folder of its files; by custom ``RUN/eval/STAGE[.CONTROL]``."""

    rows: Path
    policy: str
    tools: str
    out: Path
    stage: str = "eval"
    control: str = "none"
    limit: int | None = None
    seed: int = 0
    concurrency: int = 64
    tool_timeout_s: float = 30.0
    settings: EpisodeSettings = field(default_factory=default_settings)
    options: PolicyOptions = field(default_factory=PolicyOptions)

    def __post_init__(self) -> None:
        if self.control not in CONTROLS:
            raise UserError("control", self.control, f"choose one of {', '.join(CONTROLS)}")
        if self.limit is not None and self.limit < 1:
            raise UserError("limit", self.limit, "must be at least 1")


def run_eval(config: EvalConfig, console: Console | None = None) -> Summary:
    """Run (or go on with) an evaluation and return its summary.

    Writes ``traces.jsonl`` line by line and ``summary.json`` at the end. Killed at any moment, the same
    call goes on where it stopped. Trajectories ended by an outage are repeated by the next call.

    Raises:
        UserError: wrong input, nothing listens at the tool URL, or too many outages; then no summary exists.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    check_spec(config.policy)
    tools_alive(config.tools)
    every_row = load_rows(config.rows)
    rows = every_row[: config.limit]
    identity = Identity(
        stage=config.stage,
        control=config.control,
        policy=fingerprint(config.policy),
        rows_sha256=file_sha256(config.rows),
        seed=config.seed,
        temperature=config.options.temperature,
        settings=asdict(config.settings),
        prompt_sha256=prompt_of(rows, config.settings.dialect),
    )
    try:
        config.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            "out", config.out, f"cannot be made ({error.strerror}): choose another folder"
        ) from error
    with TraceLog(config.out / TRACES) as log:
        check_identity(config.out, identity)
        (config.out / SUMMARY).unlink(missing_ok=True)  # a summary of fewer traces would be a lie
        todo = [row for row in rows if question_key(row.data_source, row.id) not in log.done]
        asyncio.run(_play(config, every_row, len(rows), todo, identity, log, console or Console(stderr=True)))
    wanted = {question_key(row.data_source, row.id) for row in rows}
    outcomes, model = [], config.policy
    for trace in read_traces(config.out / TRACES):
        if question_key(trace.data_source, trace.question_id) in wanted:
            outcomes.append(outcome(trace))
            model = trace.model
    summary = Summary(
        identity=identity,
        metrics=summarise(outcomes, config.seed),
        rows=str(config.rows),
        n_rows=len(rows),
        tools=config.tools,
        model=model,
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
        wall_s=time.perf_counter() - start,
        cpu_s=time.process_time() - cpu_start,
        n_resumed=len(rows) - len(todo),
        commit=commit(),
        versions=versions(),
    )
    write_json(config.out / SUMMARY, summary)
    return summary


async def _play(
    config: EvalConfig,
    every_row: Sequence[RLRow],
    n_rows: int,
    todo: Sequence[RLRow],
    identity: Identity,
    log: TraceLog,
    console: Console,
) -> None:
    if not todo:
        return
    title = config.stage if config.control == "none" else f"{config.stage}.{config.control}"
    n_infra = 0
    async with (
        HttpTools(config.tools, config.tool_timeout_s) as http,
        open_policy(config.policy, config.settings.dialect, config.seed, config.options) as policy,
    ):
        tools = controlled(http, config.control, every_row, config.seed, config.settings.dialect)
        labels = TraceLabels(policy.name, config.stage, prompt_sha256=identity.prompt_sha256)
        with EvalProgress(console, f"eval {title}", n_rows, n_rows - len(todo)) as progress:
            played = run_episodes(todo, policy, tools, config.settings, labels, config.concurrency)
            async for index, trace in played:
                finish_trace(trace, todo[index], config.control)
                log.append(trace)
                progress.step(trace)
                n_infra += trace.stop_reason is StopReason.INFRA_ERROR
                if n_infra > MAX_INFRA_SHARE * n_rows:  # this run can no longer pass
                    await played.aclose()  # type: ignore[attr-defined]
                    check_infra(n_infra, n_rows)


def finish_trace(trace: Trace, row: RLRow, control: str) -> None:
    """Score a trace in place and note what its question is like; an outage gets no score."""
    parts = score_trace(trace)
    trace.score = parts.as_dict() if parts is not None else {}
    trace.extra["row"] = {key: row.extra_info[key] for key in FACETS if key in row.extra_info}
    if control != "none":
        trace.extra["control"] = control


def controlled(tools: Tools, control: str, rows: Sequence[RLRow], seed: int, dialect: str) -> Tools:
    """The tools of a control experiment: ``none``, ``blank`` or ``shuffled``."""
    if control == "blank":
        return BlankTools(tools, dialect)
    if control == "shuffled":
        return ShuffledTools(tools, [row.question for row in rows], seed, dialect)
    return tools


def load_rows(path: Path) -> list[RLRow]:
    """The rows of a file, each with an identity of its own.

    Raises:
        UserError: unreadable file, or two rows with the same data_source and id.
    """
    rows = read_rows(path)
    seen: set[str] = set()
    for row in rows:
        key = question_key(row.data_source, row.id)
        if key in seen:
            raise UserError(
                f"{path}: column id", key, "appears twice; every row needs its own id to be resumable"
            )
        seen.add(key)
    return rows


def prompt_of(rows: Sequence[RLRow], dialect: str) -> str:
    """SHA-256 of the prompt file that all rows were built from; empty where it is none of ours.

    Raises:
        UserError: it teaches another dialect than the one asked for.
    """
    first = recognise(rows[0].prompt, rows[0].question)
    if first is None or any(row.prompt != first.build(row.question) for row in rows):
        return ""
    if first.dialect != dialect:
        raise UserError("dialect", dialect, f"the rows' prompt {first.name!r} teaches {first.dialect}")
    return first.sha256


def tools_alive(url: str) -> None:
    """Make sure that something listens at the URL before a model is loaded.

    Raises:
        UserError: nothing does.
    """
    HttpTools(url)  # checks the form
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=5).close()
    except OSError as error:
        raise UserError("tools", url, f"nothing answers there ({error}): start `make serve-tools`") from error
