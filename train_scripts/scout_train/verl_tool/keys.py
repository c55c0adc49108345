"""Recipes for verl-tool: the overlays speak verl 0.9.1, this says the same in words of verl 0.7.0.dev.

A key that both know goes through as it is. `RENAMED` keys have another name there. `CONSTANT` keys name what
this engine does anyway: the same value is accepted, another refused. `NO_SUBJECT` keys of an overlay concern
a part that this engine does not have, and are left out; on the command line they are refused. Everything else
without a reader is refused by `scout_train.compose`. What follows from a whole configuration is in `settle`.
"""

from __future__ import annotations

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
    # its workers compile by actor.use_torch_compile alone
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile": "set actor_rollout_ref.actor.use_torch_compile",
    "actor_rollout_ref.ref.fsdp_config.use_torch_compile": "set actor_rollout_ref.ref.use_torch_compile",
    "critic.fsdp.use_torch_compile": "its critic is never compiled",
    "actor_rollout_ref.rollout.free_cache_engine": "its rollout gets new weights when it wakes: always true",
    "scout.sampler.poll_interval_s": "it has no buffer to poll",
}
NO_READER = {
    "algorithm.rollout_correction": "old log-probabilities are computed anew, and are those of sampling for "
    "carried groups",
    "scout.credit": "it has no turn-level credit: use engine verl",
    "trainer.v1": "it has one trainer",
}
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
    known = (*CONSTANT, *NO_READER, *NO_SUBJECT, *RENAMED)
    if isinstance(value, dict) and any(name.startswith(f"{key}.") for name in known):
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
