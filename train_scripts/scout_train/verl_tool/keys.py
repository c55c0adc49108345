"""Recipes for verl-tool: the overlays speak verl 0.9.1, this says the same in words of verl 0.7.0.dev.

A key that both know goes through as it is. `RENAMED` keys have another name there. `CONSTANT` keys name what
this
engine does anyway: the same value is accepted, another refused. `NO_SUBJECT` keys of an overlay concern a
part that this engine does not have, and are left out; on the command line they are refused. Everything else
without a reader is refused by `scout_train.compose.apply`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError
from scout_train.settings import ScoutSection
from scout_train.verl_tool.paths import checkout

RENAMED = {  # prefix in verl 0.9.1 -> in 0.7.0.dev
    "reward.reward_manager.name": "reward_model.reward_manager",
    "reward.custom_reward_function": "custom_reward_function",
    "critic.fsdp": "critic.model.fsdp_config",
    "critic.ppo_infer_max_token_len_per_gpu": "critic.ppo_max_token_len_per_gpu",
    # optim.clip_grad exists there, too, and is read by nothing that runs
    "actor_rollout_ref.actor.optim.clip_grad": "actor_rollout_ref.actor.grad_clip",
    "critic.optim.clip_grad": "critic.grad_clip",
}
CONSTANT: dict[str, tuple[Any, str]] = {
    "trainer.v1.trainer_mode": ("sync", "sampling and training take turns: placement colocated"),
    "actor_rollout_ref.rollout.nnodes": (0, "sampling and training share their devices: placement colocated"),
    "actor_rollout_ref.rollout.checkpoint_engine.backend": ("naive", "weights are copied within a process"),
    "actor_rollout_ref.actor.loss_scale_factor": (
        "${data.max_response_length}",
        "Dr.GRPO's constant is the response's padded length",
    ),
}
NO_SUBJECT = {
    "transfer_queue": "it has no TransferQueue",
    "actor_rollout_ref.rollout.free_cache_engine": "its rollout gets new weights when it wakes: always true",
    "scout.sampler.poll_interval_s": "it has no buffer to poll",
}
NO_READER = {
    "algorithm.rollout_correction": "old log-probabilities are computed anew, and are those of sampling for "
    "carried groups",
    "scout.credit": "it has no turn-level credit: use engine verl",
    "trainer.v1": "it has one trainer",
}
ESTIMATORS = ("grpo", "gae")  # those that a recipe uses and a test runs here
PLUGINS = {"scout_train.cpu.plugin": "scout_train.verl_tool.worker"}


def base_config() -> Any:
    """verl-tool's own defaults plus the ``scout`` section and ``filter_groups``, read by `groups` alone.

    Raises:
        UserError: verl-tool has no code here.
    """
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf, open_dict

    folder = checkout() / "verl_tool" / "trainer" / "config"
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(folder), version_base=None):
        config = compose(config_name="ppo_trainer")
    with open_dict(config):
        config.scout = OmegaConf.structured(ScoutSection)
        config.scout.sampler.poll_interval_s = 0.0
        # fields of its dataclasses (verl.workers.config) that its YAML files do not list
        config.actor_rollout_ref.actor.use_rollout_log_probs = False
        config.critic.model.fsdp_config.mixed_precision = None
        config.algorithm.filter_groups = {
            "_target_": "verl.trainer.config.FilterGroupsConfig",
            "enable": False,
            "metric": None,
            "max_num_gen_batches": 0,
        }
    return config


def translated(key: str, value: Any, source: str) -> list[tuple[str, Any]]:
    """What a key of a recipe is for this engine: nothing, itself, or another key.

    Raises:
        UserError: this engine has no reader for it.
    """
    typed = source.startswith("--")
    if isinstance(value, dict) and key in ("trainer.v1", "transfer_queue", "reward.reward_manager"):
        return [pair for part, item in value.items() for pair in translated(f"{key}.{part}", item, source)]
    if key in CONSTANT:
        same, why = CONSTANT[key]
        if value != same:
            raise UserError(f"{source}: {key}", value, f"the engine verl_tool has only {same}: {why}")
        return []
    for prefix, why in NO_READER.items():
        if _under(key, prefix):
            raise UserError(f"{source}: {key}", value, f"has no reader in the engine verl_tool: {why}")
    for prefix, why in NO_SUBJECT.items():
        if _under(key, prefix):
            if typed:
                raise UserError(f"{source}: {key}", value, f"has no effect in the engine verl_tool: {why}")
            return []
    for old, new in RENAMED.items():
        if _under(key, old):
            key = new + key.removeprefix(old)
            break
    if isinstance(value, str):  # what a key refers to has another name, too
        for old, new in RENAMED.items():
            value = value.replace(f"{{{old}", f"{{{new}")
    if key == "actor_rollout_ref.model.external_lib":
        value = PLUGINS.get(value, value)
    return [(key, value)]


def _under(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(f"{prefix}.")


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
