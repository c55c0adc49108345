"""What follows from a composed configuration in this engine: in verl-tool's names what Scout's keys say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError

ESTIMATORS = ("grpo", "gae")  # those that a recipe uses and a test runs here


def settle(config: Any) -> None:
    """Fill in what follows from the rest, once paths and seeds are known.

    Raises:
        UserError: settings that this engine cannot follow.
    """
    from dataclasses import asdict

    from omegaconf import open_dict

    from scout_train.settings import reward_settings

    _check(config)
    episode, rollout = config.scout.episode, config.actor_rollout_ref.rollout
    with open_dict(config):
        seed = rollout.pop("seed", 0)  # its rollout section has none
        rollout.free_cache_engine = True
        if rollout.name == "transformers":
            rollout.engine_kwargs.transformers = {
                "seed": seed,
                **rollout.engine_kwargs.get("transformers", {}),
            }
        rollout.agent.agent_loop_config_path = str(Path(__file__).with_name("agent_loop.yaml"))
        config.actor_rollout_ref.agent.update(
            {
                "max_turns": episode.max_turns - 1,  # there: tool calls; one more turn is played after them
                "max_action_length": episode.max_turn_tokens,
                "max_obs_length": config.data.max_response_length,  # cut before, both tags kept: `agent_loop`
                "mask_observations": True,
                "enable_mtrl": False,
                "mtrl_sep": "{obs}",  # unset, its loop takes one out of the chat template
                "logprobs": True,
                "tool_server_url": f"{config.scout.tools.url}/get_observation",
                "tool_call_timeout": config.scout.tools.timeout_s,
            }
        )
        config.reward_model.reward_kwargs = {
            "dialect": episode.dialect,
            **asdict(reward_settings(config.scout.reward)),
        }


def _check(config: Any) -> None:
    agent, algorithm = config.actor_rollout_ref.agent, config.algorithm
    if agent.mask_overlong_loss:
        raise UserError(
            "actor_rollout_ref.agent.mask_overlong_loss",
            True,
            "it also masks answers on the last allowed turn: use scout.reward.overlong_mask",
        )
    if algorithm.adv_estimator not in ESTIMATORS:
        raise UserError(
            "algorithm.adv_estimator",
            algorithm.adv_estimator,
            f"the engine verl_tool has {', '.join(ESTIMATORS)}: use engine verl",
        )
    if config.scout.episode.max_turns < 2:
        raise UserError(
            "scout.episode.max_turns", config.scout.episode.max_turns, "the engine verl_tool needs at least 2"
        )
