"""Variables of the processes of a run."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any


def shared_variables(config: Any) -> dict[str, str]:
    """Variables that every process of the run needs, on whatever node."""
    device = str(config.trainer.device)
    # verl ships cuda and npu and finds out which one it has; "cpu" is ours
    platform = {"VERL_USE_EXTERNAL_MODULES": "scout_train.cpu.platform", "VERL_PLATFORM": "cpu"}
    # vLLM's CPU build: GiB of its cache, no binding to cores that others use too, its processes on loopback,
    # and no C++ compiler at its first sample (enforce_eager does not reach the sampler)
    vllm_cpu = {
        "TORCH_COMPILE_DISABLE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_HOST_IP": "127.0.0.1",
    }
    return {
        **(platform | vllm_cpu if device == "cpu" else {}),
        "VLLM_NO_USAGE_STATS": "1",  # nothing leaves this machine
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONUNBUFFERED": "1",
        "VERL_USE_EXTERNAL_PLUGINS": "none",
        "VERL_LOGGING_LEVEL": "WARN",
        "TRANSFER_QUEUE_ENABLE": "1",
        "TQ_NUM_THREADS": "1",
        "TQ_CLIENT_ZMQ_IO_THREADS": "1",
        "OMP_NUM_THREADS": str(config.scout.cluster.torch_threads),
        "OMP_WAIT_POLICY": "passive",  # spinning threads starve the other processes of a small machine
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NCCL_DEBUG": "WARN",
    }


def outside(config: Any) -> dict[str, str]:
    """This process's variables without those of a foreign Ray; where a cluster is joined, its token stays."""
    joins = str(config.scout.cluster.ray_address) != "local"
    return {
        k: v
        for k, v in os.environ.items()
        if not k.startswith("RAY_") or (joins and k.startswith("RAY_AUTH"))
    }


def environment(config: Any, temp_dir: str) -> dict[str, str]:
    """Variables of every process of the run on this machine; a Ray of its own passes them to its workers."""
    run_dir = Path(config.scout.run.dir)
    env = outside(config)
    env.update(shared_variables(config))
    env.update(
        TMPDIR=temp_dir,  # verl leaves a lock file there for every checkpoint
        HF_DATASETS_CACHE=f"{temp_dir}/datasets",
        TENSORBOARD_DIR=str(run_dir / "tensorboard"),
        WANDB_DIR=str(run_dir),
        RAY_USAGE_STATS_ENABLED="0",
        RAY_DEDUP_LOGS="0",
        # Ray keeps idle workers ready for tasks; a run has only actors, each with a process of its own.
        RAY_enable_worker_prestart="0",
        RAY_prestart_worker_first_driver="0",
        # Ray's 15 makes the model yield to every other process: a browser tab doubles the time of a step.
        RAY_worker_niceness="0",
    )
    if config.trainer.device == "cpu":
        env["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    if not env.get("WANDB_API_KEY") and not env.get("WANDB_MODE"):
        env["WANDB_MODE"] = "offline"  # nothing leaves this machine, nothing asks for a key
    return env
