"""A trace as the flat arrays that are trained; free of verl, for the preflight, too."""

from __future__ import annotations

from scout_protocol.records import Author, Trace


def flatten(trace: Trace) -> tuple[list[int], list[int], list[float]]:
    """Everything after the prompt: ids, mask (1 where the loss reads a token), log-probabilities.

    Only the policy's own tokens have mask 1; all others have log-probability 0.
    """
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for span in trace.spans[1:]:
        tokens = span.token_ids or []
        own = span.author is Author.POLICY
        ids += tokens
        mask += [int(own)] * len(tokens)
        logprobs += (span.logprobs or [0.0] * len(tokens)) if own else [0.0] * len(tokens)
    return ids, mask, logprobs
