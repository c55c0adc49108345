"""What verl-tool's agent loop asks of its inference client, and what it got, for one trajectory.

A `Recorder` stands in the client's place. The ids of a turn are those that the engine returned; what an
engine returned beyond a stop string is cut before the loop sees it, and why a turn ended is read from its
tokens, since engines do not agree on a field for it. From the record a trace can be written at any moment,
also when a deadline ends the trajectory in the middle of the loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scout_agent.policy import Finish
from scout_protocol.records import Author, Span
from scout_train.trajectory import Sampled, keep_to_stop


class TurnTimeoutError(Exception):
    """One turn took longer than ``scout.episode.turn_timeout_s``."""


@dataclass(frozen=True)
class Turn:
    """One sampled turn; ``start`` is where it begins in the sequence of prompt and response."""

    start: int
    ids: list[int]
    logprobs: list[float]
    text: str
    finish: Finish


class Recorder:
    """An `AsyncLLMServerManager` of verl-tool's for one trajectory.

    Args:
        client: the real one.
        tokenizer: the policy's.
        stops: stop strings of the dialect.
        turn_timeout_s: limit of one turn.
    """

    def __init__(self, client: Any, tokenizer: Any, stops: Sequence[str], turn_timeout_s: float) -> None:
        self.client, self.tokenizer, self.stops = client, tokenizer, tuple(stops)
        self.turn_timeout_s = turn_timeout_s
        self.prompt: list[int] = []
        self.context: list[int] = []  # all ids read or written so far
        self.turns: list[Turn] = []
        self.sampled = Sampled()
        self.generate_s = 0.0
        self.n_after_stop = 0

    async def generate(
        self, request_id: str, *, prompt_ids: Sequence[int], sampling_params: dict[str, Any], **media: Any
    ) -> Any:
        """One turn of the policy.

        Raises:
            TurnTimeoutError: the engine did not answer in time.
        """
        read = list(prompt_ids)
        if not self.turns:
            self.prompt = read
        self.context = read
        start = time.perf_counter()
        try:
            async with asyncio.timeout(self.turn_timeout_s):
                out = await self.client.generate(
                    request_id, prompt_ids=read, sampling_params=dict(sampling_params), **media
                )
        except TimeoutError as error:
            raise TurnTimeoutError from error
        self.generate_s += time.perf_counter() - start
        kept = keep_to_stop(list(out.token_ids), self.stops, self.tokenizer)
        self.n_after_stop += len(out.token_ids) - kept
        ids = list(out.token_ids[:kept])
        logprobs = list(out.log_probs[:kept]) if out.log_probs is not None else [0.0] * kept
        text = self.tokenizer.decode(ids)
        stop = next((s for s in self.stops if s in text), None)
        finish = Finish.STOP if stop else Finish.LENGTH
        if not stop and ids and ids[-1] == self.tokenizer.eos_token_id:
            finish = Finish.EOS
        self.turns.append(Turn(len(read), ids, logprobs, text, finish))
        self.sampled.add(read, ids)
        self.context = read + ids
        out.token_ids, out.log_probs, out.text = ids, logprobs, text
        out.finish_reason = "length" if finish is Finish.LENGTH else "stop"
        out.stop_reason = stop
        return out

    @property
    def n_response_tokens(self) -> int:
        """Tokens after the prompt so far, the tool's included."""
        return len(self.context) - len(self.prompt)

    def spans(self, sequence: Sequence[int]) -> list[Span]:
        """The trajectory cut by author.

        Args:
            sequence: prompt and response ids; what no turn wrote after the prompt is the tool's.
        """
        decode = self.tokenizer.decode
        spans = [Span(Author.PROMPT, decode(self.prompt), list(self.prompt))]
        at = len(self.prompt)
        for turn in self.turns:
            if turn.start > at:
                ids = list(sequence[at : turn.start])
                spans.append(Span(Author.TOOL, decode(ids), ids))
            spans.append(Span(Author.POLICY, turn.text, list(turn.ids), list(turn.logprobs)))
            at = turn.start + len(turn.ids)
        if len(sequence) > at:
            spans.append(Span(Author.TOOL, decode(list(sequence[at:])), list(sequence[at:])))
        return spans
