"""verl-tool's ``verltool_agent`` loop, with outages, deadlines and records that it does not have.

The loop itself is verl-tool's. What is put around it:

- an answer ends the trajectory without a call; a search goes through the project's own client, which waits
  for a server that is being restarted. verl-tool's turns a connection error into an observation and goes on.
- an outage ends the trajectory and marks it ``lost``: it leaves loss and group
  (`scout_train.verl_tool.groups`).
- observations are cut by tokens before the loop sees them, both tags kept; its own cut may drop either.
- limits of a turn and of a trajectory.
- its ``mask_overlong_loss`` also masks an answer on the last allowed turn; here only trajectories that ran
  out of room are masked (`scout_train.overlong`).
- a trace is made, scored, and handed to the trainer; every trained token is compared with what was sampled.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import Counter
from dataclasses import asdict
from typing import Any

import msgspec
from verl_tool.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl_tool.agent_loop.verltool_agent_loop import VerlToolAgentLoop

from scout_agent.client import HttpTools
from scout_agent.episode import EpisodeSettings
from scout_agent.policy import Finish
from scout_agent.transformers_policy import observation_token_ids
from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import render_last_turn, render_repeated
from scout_protocol.prompt import recognise
from scout_protocol.records import Author, RLRow, StopReason, ToolCall, Trace
from scout_protocol.turn import Action, parse
from scout_reward.reading import Reading
from scout_reward.score import score, score_trace
from scout_train import overlong
from scout_train.patient_tools import PatientTools
from scout_train.settings import read_settings, reward_settings
from scout_train.traces import lost_why
from scout_train.trajectory import drift, to_row
from scout_train.verl_tool.recorder import Recorder, TurnTimeoutError

# Fields that the trainer adds to a question, and that come back with a trajectory.
STEP, GROUP, MEMBER = "scout_step", "scout_group", "scout_member"
TRACE, LOST = "scout_trace", "scout_lost"


class Surroundings:
    """What all trajectories of a process share: the tool connection and the settings."""

    def __init__(self, config: Any, tokenizer: Any) -> None:
        if tokenizer.encode(""):
            raise UserError(
                "tokenizer",
                tokenizer.encode(""),
                "adds tokens to every text; verl-tool encodes observations so: use engine verl",
            )
        self.settings = read_settings(config)
        self.episode = EpisodeSettings(
            **asdict(self.settings.episode), max_response_tokens=int(config.data.max_response_length)
        )
        self.dialect = get_dialect(self.episode.dialect)
        self.reward = reward_settings(self.settings.reward)
        tools = self.settings.tools
        self.connection = HttpTools(tools.url, tools.timeout_s, tools.max_connections)
        self.tools = PatientTools(self.connection, tools.outage_patience_s)
        self._opening = asyncio.Lock()
        self._open = False

    async def open(self) -> None:
        async with self._opening:
            if not self._open:
                await self.connection.__aenter__()
                self._open = True


class ScoutVerlToolLoop(VerlToolAgentLoop):  # type: ignore[misc]
    """One instance plays one trajectory."""

    around: Surroundings | None = None
    server_manager: Any

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any, processor: Any, **kwargs: Any) -> None:
        if cls.around is None:
            super().init_class(config=config, tokenizer=tokenizer, processor=processor)
            cls.around = Surroundings(config, tokenizer)
            cls.action_stop_tokens = list(cls.around.dialect.stops)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        assert self.around is not None
        self.mine, episode = self.around, self.around.episode
        self.recorder = Recorder(
            self.server_manager, self.tokenizer, self.mine.dialect.stops, episode.turn_timeout_s
        )
        self.server_manager = self.recorder
        self.calls: list[ToolCall] = []
        self.queries: Counter[str] = Counter()
        self.n_searches = self.n_cut_searches = 0
        self.answer_was_forced = self.no_room = False
        self.calling: tuple[str, float] | None = None

    # -- the tool -------------------------------------------------------------------------------------

    async def interact_with_tool_server(
        self, traj_id: str, action: str, do_action: bool, extra_fields: Any = None, is_last_step: bool = False
    ) -> dict[str, Any]:
        """One action: what verl-tool's loop calls after every turn but the last."""
        turn = parse(self.recorder.turns[-1].text, self.mine.dialect)
        start = time.perf_counter()
        if turn.action is Action.ANSWER:
            return self._result(traj_id, action, "", start, done=True)
        if turn.action is Action.SEARCH and self._is_repeated(turn.text):
            self.n_cut_searches += 1
            return self._observed(traj_id, action, render_repeated(self.mine.dialect), start)
        if turn.action is Action.SEARCH:
            self.n_searches += 1
        self.calling = (turn.text, start)
        reply = await self.mine.tools.call(traj_id, self.recorder.turns[-1].text[: turn.end])
        self.calling = None
        self.calls.append(
            ToolCall(
                turn.text, reply.latency_s, reply.valid, reply.infra_error, reply.error_kind, reply.cache
            )
        )
        if reply.infra_error:
            return self._result(traj_id, action, "", start, done=True, lost=reply.error_kind)
        return self._observed(traj_id, action, reply.observation, start, valid=reply.valid)

    def _observed(
        self, traj_id: str, action: str, text: str, start: float, valid: bool = True
    ) -> dict[str, Any]:
        """The observation, cut to what is allowed and to what has room; without room the trajectory ends."""
        episode = self.mine.episode
        texts = [(text, episode.max_obs_tokens)]
        if episode.force_answer and len(self.recorder.turns) == episode.max_turns - 1:
            self.answer_was_forced = True
            texts.append((render_last_turn(self.mine.dialect), episode.max_response_tokens))
        used, cut = self.recorder.n_response_tokens, ""
        for piece, limit in texts:
            room = episode.max_response_tokens - used
            try:
                ids = observation_token_ids(self.tokenizer, piece, self.mine.dialect, min(limit, room))
            except UserError:
                if room >= limit:
                    raise  # the setting itself is too small: the user must hear of it
                self.no_room = True
                return self._result(traj_id, action, cut, start, done=True, valid=valid)
            cut += self.tokenizer.decode(ids)
            used += len(ids)
        return self._result(traj_id, action, cut, start, valid=valid)

    def _is_repeated(self, query: str) -> bool:
        key = " ".join(query.casefold().split())
        self.queries[key] += 1
        return 0 < self.mine.episode.max_same_searches < self.queries[key]

    def _result(
        self,
        traj_id: str,
        action: str,
        text: str,
        start: float,
        done: bool = False,
        valid: bool = True,
        lost: str = "",
    ) -> dict[str, Any]:
        """What verl-tool's loop and its metrics read of an interaction."""
        outage = {"infra_error": 1.0, "error_kind": lost} if lost else {}
        return outage | {
            "obs": text,
            "reward": None,
            "trajectory_id": traj_id,
            "action": action,
            "is_last_step": False,
            "done": int(done),
            "valid_action": int(valid),
            "finish": False,
            "invalid_reason": None,
            "processing_time_ms": 1000 * (time.perf_counter() - start),
            "success": not lost,
        }

    async def close_traj_tool_threads(self, request_id: str) -> None:
        """Nothing to close: Scout's tool server holds no state of a trajectory."""

    # -- the trajectory -------------------------------------------------------------------------------

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput:
        """Play one question; a trajectory that cannot be trained comes back with the reason in ``LOST``."""
        await self.mine.open()
        row, start = to_row(fields), time.perf_counter()
        output, stop = None, None
        try:
            async with asyncio.timeout(self.mine.episode.trajectory_timeout_s):
                output = await super().run(sampling_params, **fields)
        except TurnTimeoutError:
            stop = StopReason.TURN_TIMEOUT
        except TimeoutError:
            stop = self._deadline(start)
        if output is None:
            output = self._unfinished()
        elif self.no_room:  # as the engine verl: what is left is not enough for an observation
            stop = StopReason.LENGTH
        sequence = list(output.prompt_ids) + list(output.response_ids)
        trace = self._trace(row, fields, sequence, stop or self._stop(), time.perf_counter() - start)
        return self._scored(output, trace, sequence)

    def _deadline(self, start: float) -> StopReason:
        """A tool that hung for more than half of the time was an outage, not a straggler."""
        if self.calling is None:
            return StopReason.TRAJECTORY_TIMEOUT
        query, since = self.calling
        hung_s = time.perf_counter() - since
        if hung_s + sum(c.latency_s for c in self.calls) <= self.mine.episode.trajectory_timeout_s / 2:
            return StopReason.TRAJECTORY_TIMEOUT
        self.calls.append(ToolCall(query, hung_s, False, True, "deadline"))
        return StopReason.INFRA_ERROR

    def _stop(self) -> StopReason:
        """Why the loop ended, read from the last turn as `scout_agent.episode` does."""
        if self.calls and self.calls[-1].infra_error:
            return StopReason.INFRA_ERROR
        last, episode = self.recorder.turns[-1], self.mine.episode
        turn = parse(last.text, self.mine.dialect)
        if turn.action is Action.ANSWER:
            return StopReason.ANSWER
        if last.finish is Finish.LENGTH:
            return StopReason.LENGTH
        if turn.action is Action.MALFORMED and last.finish is Finish.EOS:
            return StopReason.EOS
        if len(self.recorder.turns) >= episode.max_turns:
            return StopReason.MAX_TURNS if turn.action is Action.SEARCH else StopReason.MALFORMED
        return StopReason.LENGTH  # the loop had no room for another turn

    def _unfinished(self) -> AgentLoopOutput:
        """What a deadline left, in the shape that verl-tool's loop returns."""
        recorder = self.recorder
        size = len(recorder.prompt)
        mask = [0] * recorder.n_response_tokens
        logprobs = [0.0] * len(mask)
        for turn in recorder.turns:
            at = turn.start - size
            mask[at : at + len(turn.ids)] = [1] * len(turn.ids)
            logprobs[at : at + len(turn.ids)] = turn.logprobs
        response = recorder.context[size:]
        if not response:  # verl cannot pad an empty response
            response, mask, logprobs = [self.tokenizer.eos_token_id], [0], [0.0]
        return AgentLoopOutput(
            prompt_ids=recorder.prompt,
            response_ids=response,
            response_mask=mask,
            response_logprobs=logprobs,
            multi_modal_data={},
            num_turns=len(recorder.turns),
            metrics=AgentLoopMetrics(generate_sequences=recorder.generate_s),
            extra_fields={
                "tool_interact_info": [],
                "traj_stop_reason": "deadline",
                "verl_tool_metrics": {},
            },
        )

    def _trace(
        self, row: RLRow, fields: dict[str, Any], sequence: list[int], stop: StopReason, wall_s: float
    ) -> Trace:
        recorder, run = self.recorder, self.mine.settings.run
        response = sequence if recorder.n_response_tokens else sequence[: len(recorder.prompt)]
        spans = recorder.spans(response)
        prompt = recognise(row.prompt, row.question)
        extra: dict[str, Any] = {
            "split": "val" if fields["validate"] else "train",
            "group": str(fields[GROUP]),
            "member": int(fields[MEMBER]),
        }
        for name, value in (
            ("cut_searches", self.n_cut_searches),
            ("forced_answer", self.answer_was_forced),
            ("tokens_after_stop", recorder.n_after_stop),
            ("masked", overlong.masks(self.mine.settings.reward, stop)),
        ):
            if value:
                extra[name] = value
        return Trace(
            trace_id=uuid.uuid4().hex,
            question_id=row.id,
            data_source=row.data_source,
            question=row.question,
            golden_answers=list(row.golden_answers),
            spans=spans,
            tool_calls=self.calls,
            stop_reason=stop,
            n_turns=len(recorder.turns),
            n_searches=self.n_searches,
            n_policy_tokens=sum(len(s.token_ids or ()) for s in spans if s.author is Author.POLICY),
            n_tool_tokens=sum(len(s.token_ids or ()) for s in spans if s.author is Author.TOOL),
            score={},
            model=run.model,
            stage=run.stage,
            step=int(fields[STEP]),
            prompt_sha256=prompt.sha256 if prompt else "",
            dialect=self.mine.episode.dialect,
            wall_s=wall_s,
            extra=extra,
        )

    def _scored(self, output: AgentLoopOutput, trace: Trace, sequence: list[int]) -> AgentLoopOutput:
        """The output with reward, parts, mask and trace."""
        reward, lost = 0.0, lost_why(trace)
        found = score_trace(trace, self.mine.reward)
        if found is not None:
            timed_out = trace.stop_reason in (StopReason.TURN_TIMEOUT, StopReason.TRAJECTORY_TIMEOUT)
            reward = self.mine.settings.reward.timeout_score if timed_out else found.total
            trace.score = found.as_dict() | {"total": reward}
        if lost is None:
            mask = [0] * len(output.prompt_ids) + list(output.response_mask)
            if n_wrong := drift(sequence, mask, self.recorder.sampled):
                trace.extra["drifted_tokens"] = n_wrong
                lost = "DriftError"
        # verl stacks the parts of a batch by the first row's keys: a lost row has them too, all of a
        # trajectory that said nothing; it never reaches a batch.
        empty = score(
            Reading([], n_policy_tokens=0), trace.golden_answers, self.mine.dialect, self.mine.reward
        )
        parts = dict.fromkeys(empty.as_metrics(), 0.0) | (found.as_metrics() if found is not None else {})
        parts["searches"] = float(trace.n_searches)
        parts["answered"] = float(trace.stop_reason is StopReason.ANSWER)
        output.reward_score = reward
        if lost is not None or "masked" in trace.extra:
            output.response_mask = [0] * len(output.response_mask)
        output.extra_fields |= {
            "reward_extra_info": parts,
            TRACE: msgspec.json.encode(trace),
            LOST: lost or "",
        }
        return output
