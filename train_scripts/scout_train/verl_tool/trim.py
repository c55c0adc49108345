"""Padding that all rows of a batch share: verl-tool pads to the limits, and every pass pays for it."""

from __future__ import annotations

from typing import Any

_PROMPT, _RESPONSE = ("prompts",), ("responses", "response_mask", "rollout_log_probs", "rm_scores")
_SEQUENCE = ("input_ids", "attention_mask", "position_ids")


def trim_padding(batch: Any, keep_response: bool) -> Any:
    """The same rows without columns that are padding in all of them.

    Args:
        batch: verl's DataProto; prompts are padded on the left, responses on the right.
        keep_response: leave the response's width alone, where the loss divides by it.
    """
    data = batch.batch
    width = data["prompts"].shape[1]
    mask = data["attention_mask"]
    used = mask.any(0)
    first = int(used[:width].float().argmax()) if bool(used[:width].any()) else width - 1
    last = data["responses"].shape[1]
    if not keep_response:
        last = max(1, int(used[width:].nonzero().max()) + 1) if bool(used[width:].any()) else 1
    for name in _PROMPT:
        data[name] = data[name][:, first:].contiguous()
    for name in _RESPONSE:
        if name in data.keys():  # noqa: SIM118 (a TensorDict)
            data[name] = data[name][:, :last].contiguous()
    for name in _SEQUENCE:
        data[name] = data[name][..., first : width + last].contiguous()
    return batch
