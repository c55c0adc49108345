"""What verl 0.7.0.dev and verl-tool cannot be told through a hook. Each patch says why it exists.

Loaded first of ``VERL_USE_EXTERNAL_MODULES``, in every process of a run, while verl itself is being imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed
import torch.distributed.fsdp

from scout_protocol.errors import UserError
from scout_train.verl_tool.paths import VERL_VERSION

# verl_tool.trainer.ppo.ray_trainer imports the vLLM server modules whatever the rollout is, and the agent
# loop's module those for images and audio; neither is used for text on another rollout. Names in brackets are
# what the importing modules take from them.
_UNUSED: dict[str, tuple[str, ...]] = {
    "verl.workers.rollout.vllm_rollout": (),
    "verl.workers.rollout.vllm_rollout.vllm_async_server": ("vLLMHttpServer",),
    "verl_tool.workers.rollout.vllm_rollout": (),
    "verl_tool.workers.rollout.vllm_rollout.vllm_async_server": ("VerlToolvLLMHttpServer",),
    "torchvision": ("InterpolationMode",),
    "torchvision.io": (),
    "torchvision.transforms": ("InterpolationMode",),
    "qwen_vl_utils": ("fetch_image", "fetch_video"),
    "qwen_omni_utils": ("process_audio_info", "process_mm_info"),
    "librosa": (),
    "soundfile": (),
}
_NEEDS = {"verl": "vllm", "verl_tool": "vllm"}  # the distribution that makes a stand-in unnecessary


class _StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Empty modules in the place of those that are not installed and not needed."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = frozenset(names)

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package="vllm_async" not in fullname)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return None

    def exec_module(self, module: types.ModuleType) -> None:
        for name in _UNUSED[module.__name__]:
            setattr(module, name, None)
        if module.__name__.endswith(("torchvision", "transforms")):
            module.InterpolationMode = types.SimpleNamespace(BICUBIC="bicubic")  # type: ignore[attr-defined]


def stand_ins() -> None:
    """Make the imports of verl-tool that nothing here uses succeed without their packages."""

    def absent(name: str) -> bool:
        top = name.partition(".")[0]
        return importlib.util.find_spec(_NEEDS.get(top, top)) is None

    missing = [name for name in _UNUSED if absent(name)]
    if missing:
        sys.meta_path.insert(0, _StandIns(missing))


def cpu_device() -> None:
    """``torch.cpu`` with the part of ``torch.cuda``'s interface that verl calls: memory numbers and seeds."""
    import psutil

    def resident(*_args: Any, **_kwargs: Any) -> int:
        return int(psutil.Process().memory_info().rss)

    def nothing(*_args: Any, **_kwargs: Any) -> None:
        return None

    def free_and_total(*_args: Any) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)

    wanted: dict[str, Any] = dict.fromkeys(
        ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"), resident
    )
    wanted |= dict.fromkeys(("empty_cache", "ipc_collect", "reset_peak_memory_stats"), nothing)
    wanted |= {
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "mem_get_info": free_and_total,
        "get_device_name": lambda *_: "CPU",
    }
    for name, function in wanted.items():
        if not hasattr(torch.cpu, name):
            setattr(torch.cpu, name, function)


def gloo() -> None:
    """verl.utils.device knows no backend for a CPU, and asks for "cpu:gloo,cpu:gloo", which torch refuses."""
    import verl.utils.device as device

    device.get_nccl_backend = lambda: "gloo"
    original = torch.distributed.init_process_group

    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return original("gloo" if backend == "cpu:gloo,cpu:gloo" else backend, *args, **kwargs)

    torch.distributed.init_process_group = init_process_group


def full_precision() -> None:
    """No autocast on a CPU: verl's actor switches bfloat16 on in code, whatever ``mixed_precision`` says.

    Sampling is in fp32 there; log-probabilities of training must be those of the same function.
    """
    original = torch.autocast

    class Autocast(original):  # type: ignore[misc, valid-type]
        def __init__(self, device_type: str, *args: Any, **kwargs: Any) -> None:
            if device_type == "cpu":
                args, kwargs = (), {"enabled": False}
            super().__init__(device_type, *args, **kwargs)

    torch.autocast = Autocast  # type: ignore[misc]


def unpinned_offload() -> None:
    """verl offloads a reference policy to pinned memory; pinning needs an accelerator."""
    policy = torch.distributed.fsdp.CPUOffloadPolicy

    def unpinned(pin_memory: bool = False) -> Any:
        return policy(pin_memory=False)

    torch.distributed.fsdp.CPUOffloadPolicy = unpinned  # type: ignore[misc, assignment]


def exact_aggregation() -> None:
    """Losses summed exactly over micro-batches; see `scout_train.verl_tool.aggregate`."""
    from verl.trainer.ppo import core_algos
    from verl.workers.actor import dp_actor

    from scout_train.verl_tool.aggregate import Whole, aggregate

    whole: list[Whole] = []
    update = dp_actor.DataParallelPPOActor.update_policy

    def update_policy(self: Any, data: Any) -> Any:
        whole[:] = [Whole.of(data.batch["response_mask"])]
        return update(self, data)

    def agg_loss(loss_mat: Any, loss_mask: Any, loss_agg_mode: str) -> Any:
        return aggregate(loss_mat, loss_mask, loss_agg_mode, whole[0] if whole else Whole.of(loss_mask))

    dp_actor.DataParallelPPOActor.update_policy = update_policy
    dp_actor.agg_loss = core_algos.agg_loss = agg_loss


def runtime_env() -> None:
    """`scout_train.runner.start_ray` hands the configuration to a function that takes none here."""
    from verl.trainer import constants_ppo

    original = constants_ppo.get_ppo_ray_runtime_env
    constants_ppo.get_ppo_ray_runtime_env = lambda _config: original()


def require_version(found: str) -> None:
    """Raise unless the verl these patches were written for is the one on the path.

    Raises:
        UserError: another version.
    """
    if found != VERL_VERSION:
        raise UserError("verl", found, f"the engine verl_tool is written for {VERL_VERSION}")


stand_ins()
if not torch.cuda.is_available():
    cpu_device()
    gloo()
    full_precision()
    unpinned_offload()
