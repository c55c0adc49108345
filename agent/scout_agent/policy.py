"""What the episode loop needs from a policy. One `Session` is one trajectory's growing context."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Protocol

from scout_protocol.records import Author, RLRow, Span


class PolicyUnavailableError(Exception):
    """The policy's endpoint was not there after all retries: no evidence about the policy.

    Args:
        kind: a short machine-readable cause, e.g. ``http_503`` or ``timeout``.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        super().__init__(kind)


class Finish(enum.StrEnum):
    """Why generation of one turn stopped."""

    STOP = "stop"  # a stop string of the dialect is complete
    LENGTH = "length"
    EOS = "eos"


@dataclass(frozen=True, slots=True)
class PolicyTurn:
    """What the policy wrote in one turn.

    ``token_ids`` and ``logprobs`` are the sampled tokens themselves, never a re-tokenisation; None where
    the policy is not a token model of ours. ``extra`` ends up in the trace (``extra["turns"]``).
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


def prompt_span(row: RLRow) -> Span:
    """The prompt as text, for policies that have no chat template of their own."""
    return Span(Author.PROMPT, "\n\n".join(message["content"] for message in row.prompt))
