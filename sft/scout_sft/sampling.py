"""Groups of sampled rollouts through the real tool server, as the trainer's first batch would be."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episodes
from scout_agent.factory import PolicyOptions, check_spec, open_policy
from scout_agent.tool_access import check_token, token_from_env
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow, StopReason, Trace
from scout_sft.progress import Progress

MAX_LOST_SHARE = 0.05


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How to sample; the limits of an episode should be those of the training to come.

    ``limit`` questions (0: all) times ``samples`` rollouts at ``temperature``.
    """

    server: str = "http://127.0.0.1:5000"
    tools_token_env: str = ""  # variable with the tool server's bearer token
    dialect: str = "search-r1"
    samples: int = 8
    limit: int = 64
    temperature: float = 1.0
    max_turns: int = 4
    max_turn_tokens: int = 256
    max_response_tokens: int = 2048
    max_obs_tokens: int = 512
    max_model_len: int = 4096
    batch_size: int = 64
    concurrency: int = 64
    call_timeout_s: float = 30.0
    threads: int = 1
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        get_dialect(self.dialect)
        for name in (
            *("samples", "temperature", "max_turns", "max_turn_tokens", "max_response_tokens"),
            *("max_obs_tokens", "max_model_len", "batch_size", "concurrency", "call_timeout_s", "threads"),
        ):
            if getattr(self, name) <= 0:
                raise UserError(f"--{name.replace('_', '-')}", getattr(self, name), "must be greater than 0")
        if self.limit < 0:
            raise UserError("--limit", self.limit, "must not be negative")


def sample_groups(
    rows: Sequence[RLRow], policy_spec: str, settings: SamplingSettings, stage: str = "readiness"
) -> tuple[list[list[Trace]], int]:
    """``settings.samples`` rollouts for each question, in the questions' order, and how many were lost.

    A trajectory that an outage ended says nothing about the policy: it is left out and counted.

    Raises:
        UserError: no such policy, no rows, or more than 5 % were lost.
    """
    check_spec(policy_spec)
    chosen = list(rows[: settings.limit] if settings.limit else rows)
    if not chosen:
        raise UserError("--rows", "0 rows", "there is no question to sample")
    groups = asyncio.run(_sample(chosen, policy_spec, settings, stage))
    kept = [[t for t in group if t.stop_reason is not StopReason.INFRA_ERROR] for group in groups]
    return kept, sum(map(len, groups)) - sum(map(len, kept))


async def _sample(
    rows: list[RLRow], policy_spec: str, settings: SamplingSettings, stage: str
) -> list[list[Trace]]:
    budget = EpisodeSettings(
        dialect=settings.dialect,
        max_turns=settings.max_turns,
        max_turn_tokens=settings.max_turn_tokens,
        max_response_tokens=settings.max_response_tokens,
        max_obs_tokens=settings.max_obs_tokens,
    )
    options = PolicyOptions(
        temperature=settings.temperature,
        batch_size=settings.batch_size,
        max_model_len=settings.max_model_len,
        threads=settings.threads,
        device=settings.device,
    )
    # all samples of a question next to each other, as in a training batch
    repeated = [row for row in rows for _ in range(settings.samples)]
    token = token_from_env(settings.tools_token_env)
    check_token(settings.server, token)
    groups: list[list[Trace]] = [[] for _ in rows]
    done, lost = 0, 0
    with Progress("rollouts", len(repeated)) as progress:
        async with (
            HttpTools(settings.server, settings.call_timeout_s, settings.concurrency, token) as tools,
            open_policy(policy_spec, settings.dialect, settings.seed, options) as policy,
        ):
            labels = TraceLabels(model=policy.name, stage=stage)
            async for index, trace in run_episodes(
                repeated, policy, tools, budget, labels, settings.concurrency
            ):
                groups[index // settings.samples].append(trace)
                _check_room(trace)
                done, lost = done + 1, lost + (trace.stop_reason is StopReason.INFRA_ERROR)
                progress.update(done)
                if lost > MAX_LOST_SHARE * len(repeated):
                    kind = trace.tool_calls[-1].error_kind if trace.tool_calls else "the policy's endpoint"
                    raise UserError(
                        "--server",
                        f"{settings.server} ({kind})",
                        f"{lost} of {done} rollouts were lost: start it with `scout serve`",
                    )
    return groups


def _check_room(trace: Trace) -> None:
    """A prompt that fills the context would count against the policy, which never got to write.

    Raises:
        UserError: it does.
    """
    wrote = trace.spans[1].token_ids if len(trace.spans) > 1 else None
    if trace.stop_reason is StopReason.LENGTH and wrote == []:
        told = f"{len(trace.spans[0].token_ids or ())} tokens"
        remedy = "leaves no room to answer: leave it out (scout data audit), or raise --max-model-len"
        raise UserError(f"prompt of {trace.question_id}", told, remedy)
