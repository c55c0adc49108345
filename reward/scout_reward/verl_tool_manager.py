"""verl-tool's reward manager, in the place of its ``search_r1_qa_em``, which scores prompt and tool text.

    import scout_reward.verl_tool_manager    # in an external module that verl-tool loads
    reward_model.reward_manager=scout_search
    +reward_model.reward_kwargs.format_score=0.1

What reaches a manager there (read in verl-tool 980962b): one trajectory at a time, with ``responses`` and
``attention_mask`` but *without* ``response_mask`` (verl_tool/agent_loop/agent_loop.py, ``_run_agent_loop``),
and the agent loop's extra fields ``tool_interact_info`` (one entry per call, with the exact text of the turn
in ``action`` and the observation in ``obs``) and ``verl_tool_metrics``. So the turns that called the tool are
read from ``action``, and the last one, which called nothing, is the ``generated_length`` last tokens of the
response. The mask is read only where those fields are absent: with ``mask_observations=False`` it calls tool
text the policy's, and with ``mask_overlong_loss`` it is all 0.

A trajectory that an outage ended cannot be left out by a manager. It gets 0.0 and the mark ``no_reward``;
when the trainer asks again with the whole batch, its reward becomes the mean of the rest of its group, which
is an advantage of 0 and leaves that mean where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from verl.workers.reward_manager.registry import register

from scout_protocol.errors import UserError
from scout_reward import verl_adapter as adapter
from scout_reward.reading import Reading, read_mask

NO_REWARD = "no_reward"


@register("scout_search")
class VerlToolRewardManager:
    """``manager(data, return_dict=True)`` gives ``reward_tensor`` and ``reward_extra_info``."""

    def __init__(
        self,
        tokenizer: Any = None,
        num_examine: int = 0,
        compute_score: Any = None,
        reward_fn_key: str = "data_source",
        dialect: str = "search-r1",
        **settings: Any,
    ) -> None:
        self.tokenizer, self.dialect = tokenizer, dialect
        settings.pop("run_id", None)  # verl-tool hands its own on
        self.settings = adapter.checked_settings(frozenset(settings.items()))

    def __call__(self, data: Any, return_dict: bool = False) -> Any:
        """Rewards on the last token of each response.

        Returns:
            ``(batch, response_length)`` float32, or with ``return_dict`` also one list per part.

        Raises:
            ValueError: nothing says who wrote what, or a row has no usable ground truth.
        """
        if "rm_scores" in data.batch:
            rewards, parts = _settle(data)
        else:
            rewards, parts = self._score_all(data)
        return {"reward_tensor": rewards, "reward_extra_info": parts} if return_dict else rewards

    def _score_all(self, data: Any) -> tuple[torch.Tensor, dict[str, list[float]]]:
        rewards = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
        rows: list[dict[str, float]] = []
        for i in range(len(data)):
            item = data[i]
            ids = _response_ids(item)
            try:
                found = self._score(item, ids, int(data.meta_info.get("global_steps") or 0))
            except UserError as error:
                raise ValueError(f"trajectory {i}: {error}") from error
            rows.append(found)
            if ids:
                rewards[i, len(ids) - 1] = found["score"]
        return rewards, {key: [row[key] for row in rows] for key in (rows[0] if rows else ())}

    def _score(self, item: Any, ids: list[int], step: int) -> dict[str, float]:
        fields = item.non_tensor_batch
        truth = fields["reward_model"]["ground_truth"]
        failed = _infra_failed(fields.get("tool_interact_info"))
        reading = Reading([], n_policy_tokens=0) if failed else self._reading(item, ids)
        found = adapter.score_reading(reading, truth, self.dialect, self.settings, step)
        if failed:
            found = dict.fromkeys(found, 0.0)
        return {**found, NO_REWARD: float(failed)}

    def _reading(self, item: Any, ids: list[int]) -> Reading:
        fields = item.non_tensor_batch
        calls, metrics = fields.get("tool_interact_info"), fields.get("verl_tool_metrics")
        if calls is not None and metrics is not None:
            policy = [str(call["action"]) for call in calls]
            if int(metrics["num_turns"]) > len(calls):  # the last turn called nothing
                n = min(int(metrics["generated_length"]), len(ids))
                policy.append(str(self.tokenizer.decode(ids[len(ids) - n :])))
            tool = [str(call["obs"]) for call in calls]
            return Reading(policy, tool, int(metrics["traj_actions_length"]))
        if "response_mask" in item.batch:
            mask = item.batch["response_mask"][: len(ids)].tolist()
            return read_mask(ids, mask, lambda part: str(self.tokenizer.decode(part)))
        raise UserError(
            "response_mask, tool_interact_info",
            "absent",
            "nothing says who wrote what: mixed text is never scored",
        )


def _response_ids(item: Any) -> list[int]:
    ids = item.batch["responses"]
    n = int(item.batch["attention_mask"][-ids.shape[-1] :].sum())
    found: list[int] = ids[:n].tolist()
    return found


def _infra_failed(calls: Any) -> bool:
    """Whether the tool was not there: Scout's server says ``infra_error``, verl-tool's client ``success``."""
    return any(
        isinstance(call, Mapping) and (call.get("infra_error") or call.get("success") is False)
        for call in calls or ()
    )


def _settle(data: Any) -> tuple[torch.Tensor, dict[str, Any]]:
    """Rewards that were given before, with the trajectories without one at the mean of their group."""
    rewards = data.batch["rm_scores"]
    parts = {key: data.non_tensor_batch[key] for key in data.meta_info.get("reward_extra_keys", [])}
    if NO_REWARD not in parts or "uid" not in data.non_tensor_batch:
        return rewards, parts
    totals = rewards.sum(dim=-1)
    groups: dict[Any, list[float]] = defaultdict(list)
    for uid, lost, total in zip(data.non_tensor_batch["uid"], parts[NO_REWARD], totals.tolist(), strict=True):
        if not lost:
            groups[uid].append(total)
    settled = rewards.clone()
    for i, (uid, lost) in enumerate(zip(data.non_tensor_batch["uid"], parts[NO_REWARD], strict=True)):
        if lost and groups[uid]:
            ids = _response_ids(data[i])
            settled[i, max(len(ids) - 1, 0)] = sum(groups[uid]) / len(groups[uid])
    return settled, parts
