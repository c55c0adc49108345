"""What an agent loop of either engine does with tokens and rows, without verl.

Tokens in, tokens out: `Sampled` remembers what the inference engine really read and returned, `drift`
compares that with what would be trained, `keep_to_stop` cuts what an engine returned beyond a stop string.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from scout_data.rows import check_answers
from scout_protocol.records import RLRow


class DriftError(RuntimeError):
    """A trajectory that would train tokens which were not sampled; ``n_tokens`` of them."""

    def __init__(self, n_tokens: int, trace_id: str) -> None:
        self.n_tokens = n_tokens
        super().__init__(f"{n_tokens} tokens of trajectory {trace_id} are not those that were sampled")


@dataclass
class Sampled:
    """What the engine really read and returned, kept apart from the trace.

    Attributes:
        tokens: position in the sequence -> token that was sampled there.
        context: all ids that the model had read or written after its last turn.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    context: list[int] = field(default_factory=list)

    def add(self, context: list[int], new: list[int]) -> None:
        self.tokens |= {len(context) + i: token for i, token in enumerate(new)}
        self.context = context + new


def drift(sequence: Sequence[int], mask: Sequence[int], sampled: Sampled) -> int:
    """Positions of a trajectory where what would be trained is not what was sampled or read.

    Args:
        sequence: prompt and response ids.
        mask: of the whole sequence, 1 where the loss reads a token.
        sampled: the engine's side of the story.
    """
    wrong = {p for p, m in enumerate(mask) if m and sampled.tokens.get(p) != sequence[p]}
    pairs = enumerate(zip(sequence, sampled.context, strict=False))
    wrong |= {p for p, (ours, theirs) in pairs if ours != theirs}
    return len(wrong) + max(0, len(sampled.context) - len(sequence))


def keep_to_stop(ids: list[int], stops: Sequence[str], tokenizer: Any) -> int:
    """How many of the sampled ids belong to the turn: up to the token that completes the first stop string.

    That token is kept whole, since it is what was sampled: Qwen has one token for ``>`` with two newlines. An
    engine that returns more (several tokens in one go, a late stop check) is cut here.
    """

    def complete(n: int) -> bool:
        text = tokenizer.decode(ids[:n])
        return any(stop in text for stop in stops)

    if not ids or not complete(len(ids) - 1):
        return len(ids)
    low, high = 1, len(ids) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if complete(middle) else (middle + 1, high)
    return low


def to_row(fields: dict[str, Any]) -> RLRow:
    """A row of the data set as verl passes it to an agent loop."""
    return RLRow(
        data_source=str(fields["data_source"]),
        prompt=[{k: str(v) for k, v in m.items()} for m in fields["raw_prompt"]],
        ability=str(fields["ability"]),
        reward_model=dict(fields["reward_model"]),
        extra_info=dict(fields["extra_info"]),
        id=str(fields["id"]),
        question=str(fields["question"]),
        golden_answers=check_answers(fields["golden_answers"], "golden_answers"),
    )
