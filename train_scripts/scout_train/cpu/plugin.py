"""``actor_rollout_ref.model.external_lib``: verl imports this wherever it builds a model configuration."""

from __future__ import annotations

from typing import Any

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead, FSDPEngineWithValueHead
from verl.workers.rollout.replica import RolloutReplicaRegistry

from scout_train.cpu import patches


def _replica() -> Any:
    from scout_train.cpu.rollout import TransformersReplica

    return TransformersReplica


def _vllm_replica() -> Any:
    from scout_train.cpu.vllm_server import CpuVllmReplica

    return CpuVllmReplica


def register() -> None:
    """FSDP's engines for the device "cpu", policy and critic; the rollouts ``transformers`` and ``vllm``."""
    EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(
        FSDPEngineWithLMHead
    )
    EngineRegistry.register(model_type="value_model", backend=["fsdp", "fsdp2"], device="cpu")(
        FSDPEngineWithValueHead
    )
    RolloutReplicaRegistry.register("transformers", _replica)
    RolloutReplicaRegistry.register("vllm", _vllm_replica)
    patches.rollout_class("transformers", "scout_train.cpu.rollout.TransformersRollout")
    patches.unpinned_offload()
    patches.plain_value_head()
    patches.logprobs_in_chunks()


register()
