"""Who wrote what: the one thing that decides what a reward may read.

Two readers give the same `Reading`: by spans where only text is known, by mask where token ids are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

import msgspec

from scout_protocol.errors import UserError
from scout_protocol.records import Author, Span, Trace


class Reading(msgspec.Struct, frozen=True):
    """A trajectory, cut by author. The prompt is in neither part.

    Attributes:
        policy_texts: what the policy wrote, in order; one or more turns each.
        tool_texts: the observations, in order.
        n_policy_tokens: tokens that the policy sampled; None where only text is known.
    """

    policy_texts: Sequence[str]
    tool_texts: Sequence[str] = ()
    n_policy_tokens: int | None = None


def read_spans(spans: Iterable[Span], n_policy_tokens: int | None = None) -> Reading:
    """The reading of a list of spans.

    ``n_policy_tokens`` is counted from the spans' token ids where it is not given and all of them have some.
    """
    policy: list[str] = []
    tool: list[str] = []
    counted: int | None = 0
    for span in spans:
        if span.author is Author.POLICY:
            policy.append(span.text)
            known = counted is not None and span.token_ids is not None
            counted = counted + len(span.token_ids) if known else None  # type: ignore[arg-type, operator]
        elif span.author is Author.TOOL:
            tool.append(span.text)
    return Reading(policy, tool, counted if n_policy_tokens is None else n_policy_tokens)


def read_trace(trace: Trace) -> Reading:
    """The reading of a trace."""
    return read_spans(trace.spans, trace.n_policy_tokens)


def read_mask(
    response_ids: Sequence[int], response_mask: Sequence[int], decode: Callable[[list[int]], str]
) -> Reading:
    """The reading of a response by its loss mask: runs of 1 are the policy's, runs of 0 the tool's.

    Args:
        response_ids: the tokens after the prompt, without padding.
        response_mask: one value per token, 1 where the policy sampled it.
        decode: token ids to text, special tokens kept.

    Raises:
        UserError: the two have different lengths.
    """
    if len(response_ids) != len(response_mask):
        raise UserError(
            "response_mask", len(response_mask), f"must have {len(response_ids)} values, one per token"
        )
    policy: list[str] = []
    tool: list[str] = []
    for own, run in groupby(zip(response_ids, response_mask, strict=True), key=lambda pair: bool(pair[1])):
        (policy if own else tool).append(decode([token for token, _ in run]))
    return Reading(policy, tool, sum(1 for own in response_mask if own))
