"""What the episode loop needs from a policy. One `Session` is one trajectory's growing context."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Protocol

from scout_protocol.records import RLRow, Span


class Finish(enum.StrEnum):
    """Why generation of one turn stopped."""

    STOP = "stop"  # a stop string of the dialect is complete
    LENGTH = "length"
    EOS = "eos"


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """What the policy wrote in one turn.

    ``token_ids`` and ``logprobs`` are the sampled tokens themselves, never a re-tokenisation; None where
    the policy is not a token model of ours.
    """

    text: str
    finish: Finish
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


class Session(Protocol):
    """One conversation: prompt, then policy turns and observations in alternation."""

    prompt: Span

    async def act(self, max_tokens: int) -> PolicyTurn:
        """Write the next turn, at most ``max_tokens`` tokens, up to and including the first stop string."""
        ...

    def observe(self, observation: str, max_tokens: int) -> Span:
        """Append tool text (cut to ``max_tokens`` tokens, both markers kept) and return it as a span."""
        ...


class Policy(Protocol):
    """Anything that can play the part of the agent."""

    name: str

    async def start(self, row: RLRow) -> Session:
        """Begin a trajectory for one question."""
        ...
