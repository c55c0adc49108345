"""The reward as a manager of verl 0.9.1's reward loop.

    reward.reward_manager.source=importlib
    reward.reward_manager.name=ScoutRewardManager
    reward.reward_manager.module.path=pkg://scout_reward.verl_reward_loop
    +reward.reward_kwargs.format_score=0.1

It is asked once per trajectory. The batch holds ``prompts``, ``responses`` and ``attention_mask`` but no loss
mask (experimental/agent_loop/agent_loop.py, ``_compute_score``), so who wrote what comes from the agent
loop's ``extra_fields``: the texts of `verl_adapter.extra_fields`, or a ``response_mask`` over the response's
tokens. Unlike the built-in managers it decodes nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from scout_protocol.errors import UserError
from scout_reward import verl_adapter as adapter
from scout_reward.reading import Reading, read_mask

RESPONSE_MASK = "response_mask"


class ScoutRewardManager(RewardManagerBase):  # type: ignore[misc]
    """Scores the last sequence of a trajectory, as verl's own managers do."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any = None, **_: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        kwargs = dict(config.reward.get("reward_kwargs") or {})
        self.dialect = str(kwargs.pop("dialect", "search-r1"))
        self.settings = adapter.checked_settings(frozenset(kwargs.items()))

    async def run_single(self, data: Any) -> dict[str, Any]:
        """``{"reward_score": float, "reward_extra_info": {part: float}}`` of ``data[-1]``."""
        item = data[-1:][0]
        fields = item.non_tensor_batch.get("tool_extra_fields")
        truth = item.non_tensor_batch["reward_model"]["ground_truth"]
        try:
            if fields is None:
                raise UserError("tool_extra_fields", "absent", "the agent loop must set extra_fields")
            found = adapter.score_reading(
                self._reading(item, fields),
                truth,
                self.dialect,
                self.settings,
                adapter.step_of(fields, self.settings),
            )
        except UserError as error:
            raise ValueError(str(error)) from error  # Ray pickles it
        return {"reward_score": found["score"], "reward_extra_info": found}

    def _reading(self, item: Any, fields: Mapping[str, Any]) -> Reading:
        if fields.get(adapter.POLICY_TEXTS) is None and fields.get(RESPONSE_MASK) is not None:
            ids = item.batch["responses"]
            n = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
            mask = [int(own) for own in fields[RESPONSE_MASK]][:n]
            return read_mask(ids[:n].tolist(), mask, lambda part: str(self.tokenizer.decode(part)))
        return adapter.reading_of(fields)
