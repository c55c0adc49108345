"""Questions about a composed configuration that verl answers too, without importing verl."""

from __future__ import annotations

from typing import Any


def uses_reference(config: Any) -> bool:
    """Whether a reference model is loaded: `verl.trainer.ppo.utils.need_reference_policy`."""
    return bool(config.algorithm.use_kl_in_reward or config.actor_rollout_ref.actor.use_kl_loss)


def uses_critic(config: Any) -> bool:
    """Whether a critic is trained: `verl.trainer.ppo.utils.need_critic`."""
    if config.critic.enable is not None:
        return bool(config.critic.enable)
    return str(config.algorithm.adv_estimator) == "gae"
