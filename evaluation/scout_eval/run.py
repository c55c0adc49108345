"""Run one evaluation: rows, a policy and a tool server in; traces and a summary out. Resumable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from scout_agent.client import HttpTools, Tools
from scout_agent.controls import CONTROLS, BlankTools, ShuffledTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episodes
from scout_agent.policy import Policy
from scout_agent.random_control import RandomTools
from scout_agent.tool_access import check_token, token_from_env
from scout_data.rows import read_rows
from scout_eval.lockstep import Lockstep
from scout_eval.metrics import MAX_INFRA_SHARE, check_infra, summarise
from scout_eval.outcomes import FACETS, outcome
from scout_eval.policy_factory import PolicyOptions, check_spec, fingerprint, open_policy
from scout_eval.progress import EvalProgress
from scout_eval.provenance import commit, file_sha256, versions
from scout_eval.server import DEFAULT_TOPK, random_pool, server_facts, style_of, tools_alive
from scout_eval.summary import SUMMARY, TRACES, Identity, Summary, check_identity, write_json
from scout_eval.trace_log import TraceLog, question_key, read_traces, sample_key, trace_key
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import Document
from scout_protocol.prompt import recognise
from scout_protocol.records import RLRow, StopReason, Trace
from scout_reward import gate
from scout_reward.score import score_trace
from scout_reward.settings import DEFAULTS, RewardSettings


def default_settings() -> EpisodeSettings:
    """The episode of the command line's defaults: time limits that a busy machine does not reach."""
    return EpisodeSettings(turn_timeout_s=120.0, trajectory_timeout_s=600.0)


@dataclass(frozen=True, slots=True)
class EvalConfig:
    """One evaluation. ``out`` is the folder of its files; by custom ``RUN/eval/STAGE[.CONTROL]``.

    ``samples`` above 1 plays every question that many times, for pass@k; it needs a temperature.
    """

    rows: Path
    policy: str
    tools: str
    out: Path
    tools_token_env: str = ""  # variable with the tool server's bearer token
    stage: str = "eval"
    control: str = "none"
    limit: int | None = None
    samples: int = 1
    seed: int = 0
    concurrency: int = 64
    tool_timeout_s: float = 30.0
    settings: EpisodeSettings = field(default_factory=default_settings)
    options: PolicyOptions = field(default_factory=PolicyOptions)
    reward: RewardSettings = DEFAULTS
    step: int | None = None  # of training; read by a format score that decays

    def __post_init__(self) -> None:
        if self.reward.format_schedule != "constant" and self.step is None:
            raise UserError(
                "format_schedule",
                self.reward.format_schedule,
                "give the policy's training step with --step",
            )
        if self.step is not None and self.step < 0:
            raise UserError("step", self.step, "must be at least 0")
        if self.reward.overlong_penalty and check_spec(self.policy)[0] != "hf":
            raise UserError(
                "overlong_penalty", self.reward.overlong_penalty, "counts tokens: only an hf: policy has them"
            )
        if self.control not in CONTROLS:
            raise UserError("control", self.control, f"choose one of {', '.join(CONTROLS)}")
        for name in ("limit", "samples", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(name, value, "must be at least 1")
        if self.samples > 1 and self.options.temperature <= 0:
            raise UserError(
                "samples", self.samples, "at temperature 0 all samples are the same: set --temperature"
            )


@dataclass(frozen=True, slots=True)
class Job:
    """One trajectory to play."""

    row: RLRow
    sample: int

    @property
    def key(self) -> str:
        """As `trace_key` of the trace that it becomes."""
        return sample_key(question_key(self.row.data_source, self.row.id), self.sample)


def run_eval(config: EvalConfig, console: Console | None = None) -> Summary:
    """Run (or go on with) an evaluation and return its summary.

    Writes ``traces.jsonl`` line by line and ``summary.json`` at the end. Killed at any moment, the same
    call goes on where it stopped. Trajectories ended by an outage are repeated by the next call.

    Raises:
        UserError: wrong input, nothing listens at the tool URL, or too many outages; then no summary exists.
    """
    start, cpu_start = time.perf_counter(), time.process_time()
    kind, _ = check_spec(config.policy)
    gate.check(config.reward, [get_dialect(config.settings.dialect)], config.settings.max_turns - 1)
    tools_alive(config.tools)
    token = token_from_env(config.tools_token_env)
    check_token(config.tools, token)
    every_row = load_rows(config.rows)
    rows = every_row[: config.limit]
    jobs = [Job(row, sample) for sample in range(config.samples) for row in rows]
    wave = min(config.options.batch_size, config.concurrency) if kind == "hf" else None
    identity = Identity(
        stage=config.stage,
        control=config.control,
        policy=fingerprint(config.policy),
        rows_sha256=file_sha256(config.rows),
        seed=config.seed,
        temperature=config.options.temperature,
        settings=asdict(config.settings),
        prompt_sha256=prompt_of(rows, config.settings.dialect),
        batch_size=wave,
        samples=config.samples,
        retriever=server_facts(config.tools),
        reward=reward_facts(config),
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
        n_done = sum(job.key in log.done for job in jobs)
        if n_done < len(jobs):
            console = console or Console(stderr=True)
            asyncio.run(_play(config, every_row, jobs, identity, log, console, token))
    wanted = {job.key for job in jobs}
    outcomes, model = [], config.policy
    for trace in read_traces(config.out / TRACES):
        if trace_key(trace) in wanted:
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
        n_resumed=n_done,
        commit=commit(),
        versions=versions(),
    )
    write_json(config.out / SUMMARY, summary)
    return summary


async def _play(
    config: EvalConfig,
    every_row: Sequence[RLRow],
    jobs: Sequence[Job],
    identity: Identity,
    log: TraceLog,
    console: Console,
    token: str,
) -> None:
    title = config.stage if config.control == "none" else f"{config.stage}.{config.control}"
    todo = [job for job in jobs if job.key not in log.done]
    n_infra = 0
    pool: list[Document] = []
    if config.control == "random":
        questions = [row.question for row in every_row]
        pool = await asyncio.to_thread(random_pool, config.tools, questions, config.seed, token)
    async with (
        HttpTools(config.tools, config.tool_timeout_s, token=token) as http,
        open_policy(config.policy, config.settings.dialect, config.seed, config.options) as policy,
    ):
        tools = controlled(http, config, every_row, identity, pool)
        labels = TraceLabels(policy.name, config.stage, config.step or 0, identity.prompt_sha256)
        with EvalProgress(console, f"eval {title}", len(jobs), len(jobs) - len(todo)) as progress:
            if identity.batch_size is None:
                played = _free(todo, policy, tools, config, labels)
            else:
                played = _waves(jobs, log.done, identity.batch_size, policy, tools, config, labels)
            # Closed here, also when the disk is full: the event loop's own clean-up would print a traceback.
            async with aclosing(played):
                async for job, trace in played:
                    finish_trace(trace, job.row, config.control, job.sample, config.reward)
                    log.append(trace)
                    progress.step(trace)
                    n_infra += trace.stop_reason is StopReason.INFRA_ERROR
                    if n_infra > MAX_INFRA_SHARE * len(jobs):  # this run can no longer pass
                        check_infra(n_infra, len(jobs))


async def _free(
    todo: Sequence[Job], policy: Policy, tools: Tools, config: EvalConfig, labels: TraceLabels
) -> AsyncGenerator[tuple[Job, Trace], None]:
    """Every job as slots free up: for policies whose answers do not depend on each other."""
    played = run_episodes(
        (job.row for job in todo), policy, tools, config.settings, labels, config.concurrency
    )
    try:
        async for index, trace in played:
            yield todo[index], trace
    finally:
        await played.aclose()  # type: ignore[attr-defined]


async def _waves(
    jobs: Sequence[Job],
    done: set[str],
    size: int,
    policy: Policy,
    tools: Tools,
    config: EvalConfig,
    labels: TraceLabels,
) -> AsyncGenerator[tuple[Job, Trace], None]:
    """Wave after wave in lockstep. A wave of which something is missing is played whole.

    So a run that was killed has the same batches as one that was not; what it had already is not kept twice.
    """
    for at in range(0, len(jobs), size):
        wave = jobs[at : at + size]
        if all(job.key in done for job in wave):
            continue
        rows = [msgspec.structs.replace(job.row) for job in wave]  # one object each, also for two samples
        together = Lockstep(policy, rows)
        played = run_episodes(rows, together, tools, config.settings, labels, len(rows))
        try:
            async for index, trace in played:
                together.leave(index)
                if wave[index].key not in done:
                    yield wave[index], trace
        finally:
            await played.aclose()  # type: ignore[attr-defined]


def reward_facts(config: EvalConfig) -> dict[str, Any]:
    """The reward's settings that are not the defaults, and the step where one of them reads it."""
    found = config.reward.changed()
    return found | ({"step": config.step} if config.reward.format_schedule != "constant" else {})


def finish_trace(
    trace: Trace, row: RLRow, control: str, sample: int = 0, reward: RewardSettings = DEFAULTS
) -> None:
    """Score a trace in place and note what its question is like; an outage gets no score.

    EM and F1 follow the papers' rule whatever the reward is told: under another normaliser they stand in
    ``extra["paper"]``, and ``score`` keeps the parts of the reward.
    """
    parts = score_trace(trace, reward)
    trace.score = parts.as_dict() if parts is not None else {}
    if parts is not None and reward.normaliser != DEFAULTS.normaliser:
        plain = score_trace(trace, DEFAULTS)
        trace.extra["paper"] = {"em": plain.em, "f1": plain.f1} if plain is not None else {}
    trace.extra["row"] = {key: row.extra_info[key] for key in FACETS if key in row.extra_info}
    if control != "none":
        trace.extra["control"] = control
    if sample:
        trace.extra["sample"] = sample


def controlled(
    tools: Tools, config: EvalConfig, rows: Sequence[RLRow], identity: Identity, pool: Sequence[Document]
) -> Tools:
    """The tools of a control experiment, or the real ones."""
    dialect, facts = config.settings.dialect, identity.retriever
    if config.control == "blank":
        return BlankTools(tools, dialect)
    if config.control == "shuffled":
        return ShuffledTools(tools, [row.question for row in rows], config.seed, dialect)
    if config.control == "random":
        topk = int(facts.get("topk", DEFAULT_TOPK))
        return RandomTools(tools, pool, topk, config.seed, dialect, style_of(facts))
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
