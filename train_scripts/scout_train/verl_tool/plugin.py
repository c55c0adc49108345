"""Second of ``VERL_USE_EXTERNAL_MODULES``: what this engine puts into verl's registries, in every process."""

from __future__ import annotations

from typing import Any

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplicaRegistry

import scout_reward.verl_tool_manager  # noqa: F401  (registers the reward manager "scout_search")


def _replica() -> Any:
    from scout_train.verl_tool.rollout import VerlToolReplica

    return VerlToolReplica


# verl 0.7.0.dev has a public registry for replicas, for rollout classes only a private dict.
_ROLLOUT_REGISTRY[("transformers", "async")] = "scout_train.verl_tool.rollout.VerlToolRollout"
RolloutReplicaRegistry.register("transformers", _replica)
