"""verl's AgentLoop around the project's own episode loop: tokens in, tokens out.

What was sampled is what is trained: the ids of a turn are those that the engine returned, never a
re-tokenisation. Observation tokens get mask 0 and log-probability 0. The reward is computed here, from the
policy's own text, and handed to verl with its parts. A trajectory that an outage of the tool ended returns
``[]``: in verl 0.9.1 that leaves it out of the loss and of the group's mean and standard deviation.

Before a trajectory is handed over, every token with mask 1 is compared with what the engine returned at that
place, and the last context the model read with the sequence itself (`drift`). A difference is a defect: the
trajectory is not trained, and ``scout/retokenisation_drift`` counts its tokens.
"""

from __future__ import annotations

import contextvars
import time
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import Any

from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopMetrics,
    AgentLoopOutput,
    register,
)

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings, TraceLabels, run_episode
from scout_agent.policy import Finish, PolicyTurn
from scout_agent.tool_access import token_from_env
from scout_agent.transformers_policy import observation_token_ids, prompt_token_ids
from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.prompt import recognise
from scout_protocol.records import Author, RLRow, Span, StopReason, Trace
from scout_reward.score import score_trace
from scout_train import credit, overlong
from scout_train.patient_tools import PatientTools
from scout_train.settings import ScoutSection, read_settings, reward_settings
from scout_train.tokens import flatten
from scout_train.traces import TraceLog
from scout_train.trajectory import DriftError, Sampled, drift, keep_to_stop, to_row

LOOP = "scout_search"  # its name in verl's registry
# Whether the trajectory of this task is a validation rollout; verl does not tell an agent loop.
VALIDATING: contextvars.ContextVar[bool] = contextvars.ContextVar("scout_validating", default=False)


class ServerSession:
    """One trajectory's ids, grown through verl's inference client: a `scout_agent.policy.Session`."""

    def __init__(self, policy: ServerPolicy, row: RLRow) -> None:
        self.policy = policy
        self.ids = prompt_token_ids(policy.tokenizer, row.prompt)
        if len(self.ids) > policy.max_prompt_tokens:
            raise UserError(
                f"prompt of {row.id}",
                f"{len(self.ids)} tokens",
                f"data.max_prompt_length={policy.max_prompt_tokens}",
            )
        self.prompt = Span(Author.PROMPT, policy.tokenizer.decode(self.ids), list(self.ids))
        self.request_id = uuid.uuid4().hex

    async def act(self, max_tokens: int) -> PolicyTurn:
        start = time.perf_counter()
        out = await self.policy.client.generate(
            request_id=self.request_id,
            prompt_ids=list(self.ids),
            sampling_params={**self.policy.sampling, "max_tokens": max_tokens},
        )
        self.policy.generate_s += time.perf_counter() - start
        kept = keep_to_stop(list(out.token_ids), self.policy.dialect.stops, self.policy.tokenizer)
        ids, after_stop = list(out.token_ids[:kept]), len(out.token_ids) - kept
        self.policy.n_after_stop += after_stop
        self.policy.sampled.add(self.ids, ids)
        self.ids = self.ids + ids
        text = self.policy.tokenizer.decode(ids)
        # verl wants to know the first and the last version of the weights that wrote a trajectory.
        first = self.policy.extra_fields.get("min_global_steps", out.extra_fields.get("min_global_steps"))
        self.policy.extra_fields = {**out.extra_fields, "min_global_steps": first}
        logprobs = out.log_probs[:kept] if out.log_probs is not None else [0.0] * kept
        return PolicyTurn(text, self._finish(text, ids), list(ids), list(logprobs))

    def _finish(self, text: str, ids: list[int]) -> Finish:
        """Why the turn stopped; read from the tokens, since engines do not agree on a field for it."""
        if any(stop in text for stop in self.policy.dialect.stops):
            return Finish.STOP
        return Finish.EOS if ids and ids[-1] in self.policy.eos_ids else Finish.LENGTH

    def observe(self, observation: str, max_tokens: int) -> Span:
        tokenizer, dialect = self.policy.tokenizer, self.policy.dialect
        try:
            ids = observation_token_ids(tokenizer, observation, dialect, max_tokens)
        except UserError:
            if max_tokens >= self.policy.max_obs_tokens:
                raise
            # The response has no room left even for the frame: fill it, so that the episode ends by LENGTH.
            ids = tokenizer.encode(observation, add_special_tokens=False)[:max_tokens]
        self.ids = self.ids + ids
        return Span(Author.TOOL, tokenizer.decode(ids), list(ids))


class ServerPolicy:
    """The policy behind verl's inference client, for one trajectory: a `scout_agent.policy.Policy`."""

    def __init__(
        self,
        client: Any,
        tokenizer: Any,
        dialect: Dialect,
        sampling: dict[str, Any],
        settings: EpisodeSettings,
    ) -> None:
        self.client, self.tokenizer, self.dialect = client, tokenizer, dialect
        self.sampling = {**sampling, "stop": list(dialect.stops), "include_stop_str_in_output": True}
        self.max_obs_tokens, self.max_prompt_tokens = settings.max_obs_tokens, 1 << 30
        self.eos_ids = {tokenizer.eos_token_id}
        self.name = "policy"
        self.generate_s = 0.0
        self.extra_fields: dict[str, Any] = {}
        self.sampled = Sampled()
        self.n_after_stop = 0

    async def start(self, row: RLRow) -> ServerSession:
        return ServerSession(self, row)


def to_output(
    trace: Trace, reward: float, parts: dict[str, float], policy: ServerPolicy, masked: bool = False
) -> AgentLoopOutput:
    """A scored trace as verl wants it: flat ids with mask and log-probabilities of the same length.

    Args:
        masked: the whole trajectory carries no loss; its reward still counts in the group.

    Returns:
        ``response_ids``, ``response_mask`` and ``response_logprobs`` cover everything after the prompt.

    Raises:
        DriftError: a token of the policy is not the one that was sampled.
    """
    ids, mask, logprobs = flatten(trace)
    prompt_ids = trace.spans[0].token_ids or []
    # verl puts the reward on the last token, and GAE reads it only where the policy wrote: what the policy
    # never answered to is left away (a trajectory that ran out of room, or of time).
    n_kept = len(mask) - next((i for i, own in enumerate(reversed(mask)) if own), 0)
    ids, mask, logprobs = ids[:n_kept], mask[:n_kept], logprobs[:n_kept]
    if n_wrong := drift(prompt_ids + ids, [0] * len(prompt_ids) + mask, policy.sampled):
        raise DriftError(n_wrong, trace.trace_id)
    return AgentLoopOutput(
        prompt_ids=prompt_ids,
        response_ids=ids,
        response_mask=[0] * len(mask) if masked else mask,
        response_logprobs=logprobs,
        reward_score=reward,
        num_turns=trace.n_turns,
        metrics=AgentLoopMetrics(
            generate_sequences=policy.generate_s, tool_calls=sum(c.latency_s for c in trace.tool_calls)
        ),
        extra_fields={
            **policy.extra_fields,
            "reward_extra_info": parts,
            "stop_reason": trace.stop_reason.value,
            "policy_tokens": sum(mask),
            "anchors": credit.anchors(trace.spans[1:]),
        },
    )


class Surroundings:
    """What all trajectories of a process share: the tool connection, the trace file, the settings."""

    def __init__(self, config: Any) -> None:
        self.settings: ScoutSection = read_settings(config)
        self.episode = EpisodeSettings(
            **asdict(self.settings.episode), max_response_tokens=int(config.data.max_response_length)
        )
        self.reward = reward_settings(self.settings.reward)
        tools = self.settings.tools
        self.connection = HttpTools(
            tools.url, tools.timeout_s, tools.max_connections, token_from_env(tools.token_env)
        )
        self.tools = PatientTools(self.connection, tools.outage_patience_s)
        self.traces = TraceLog(Path(self.settings.run.dir) / "traces.jsonl")
        self._open = False

    async def open(self) -> None:
        if not self._open:
            self._open = True
            await self.connection.__aenter__()

    async def close(self) -> None:
        if self._open:
            await self.connection.__aexit__(None, None, None)
        self.traces.close()


_SURROUNDINGS: dict[str, Surroundings] = {}


def surroundings(config: Any) -> Surroundings:
    """The one of this process, made at first use."""
    key = str(config.scout.run.dir)
    if key not in _SURROUNDINGS:
        _SURROUNDINGS[key] = Surroundings(config)
    return _SURROUNDINGS[key]


@register(LOOP)
class ScoutAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """Plays trajectories, each call of `run` one; nothing of them stays."""

    async def run(
        self, sampling_params: dict[str, Any], **fields: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        around = surroundings(self.config)
        step, train = int(fields["global_steps"]), not VALIDATING.get()
        try:
            await around.open()
            return await self._play(around, sampling_params, fields, step, train)
        except Exception as error:
            if train:
                n_drifted = error.n_tokens if isinstance(error, DriftError) else 0
                around.traces.count_failure(step, error, n_drifted)
            raise

    async def _play(
        self,
        around: Surroundings,
        sampling_params: dict[str, Any],
        fields: dict[str, Any],
        step: int,
        train: bool,
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        settings, dialect = around.episode, get_dialect(around.episode.dialect)
        policy = ServerPolicy(self.server_manager, self.tokenizer, dialect, sampling_params, settings)
        policy.max_prompt_tokens = int(self.config.data.max_prompt_length)
        row, run = to_row(fields), around.settings.run
        prompt = recognise(row.prompt, row.question)
        labels = TraceLabels(run.model, run.stage, step, prompt.sha256 if prompt else "")
        trace = await run_episode(row, policy, around.tools, settings, labels)
        trace.extra |= {
            "split": "train" if train else "val",
            "group": str(fields["uid"]),
            "member": int(fields["session_id"]),
        }
        score = score_trace(trace, around.reward)
        reward = 0.0
        if score is not None:
            timed_out = trace.stop_reason in (StopReason.TURN_TIMEOUT, StopReason.TRAJECTORY_TIMEOUT)
            reward = around.settings.reward.timeout_score if timed_out else score.total
            trace.score = score.as_dict() | {"total": reward}
        masked = overlong.masks(around.settings.reward, trace.stop_reason)
        if masked:
            trace.extra["masked"] = True
        if policy.n_after_stop:
            trace.extra["tokens_after_stop"] = policy.n_after_stop
        around.traces.write(trace, train)
        # Without a token of its own a trajectory has nothing to train (a time-out before the first turn).
        if score is None or not trace.n_policy_tokens:
            return []
        parts = score.as_metrics()
        parts["searches"] = float(trace.n_searches)
        parts["answered"] = float(trace.stop_reason is StopReason.ANSWER)
        return to_output(trace, reward, parts, policy, masked)
