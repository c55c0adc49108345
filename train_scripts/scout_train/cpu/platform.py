"""The platform "cpu" for verl's `PlatformRegistry`, loaded in every process by ``VERL_USE_EXTERNAL_MODULES``.

verl 0.9.1 ships cuda, npu and rocm. A platform is a documented extension point, so nothing here replaces
code of verl; the two places where it cannot run on a CPU are in `scout_train.cpu.patches`.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from scout_train.cpu import patches, vllm_name


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


def _resident_bytes(*_args: Any, **_kwargs: Any) -> int:
    return int(psutil.Process().memory_info().rss)


def _free_and_total_bytes(*_args: Any) -> tuple[int, int]:
    memory = psutil.virtual_memory()
    return int(memory.available), int(memory.total)


def _device_module() -> types.ModuleType:
    """``torch.cpu`` with what verl expects of ``torch.cuda``: memory numbers are those of this process."""
    module = types.ModuleType("scout_cpu_device")
    for name in dir(torch.cpu):
        if not name.startswith("_"):
            setattr(module, name, getattr(torch.cpu, name))
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(module, name, _resident_bytes)
    for name in (
        "empty_cache",
        "ipc_collect",
        "set_device",
        "reset_peak_memory_stats",
        "set_per_process_memory_fraction",
    ):
        setattr(module, name, _nothing)
    for name in ("get_rng_state", "set_rng_state", "manual_seed"):
        setattr(module, name, getattr(torch, name))
    module.__dict__.update(
        manual_seed_all=torch.manual_seed,
        mem_get_info=_free_and_total_bytes,
        get_device_name=lambda *_: "CPU",
    )
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):  # type: ignore[misc]
    """One logical device. Ray is told that it is a GPU, because verl places its workers by that resource."""

    device_name = "cpu"
    vendor_name = "cpu"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def current_device(self) -> str:
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None


patches.gloo_backend()
vllm_name.install()
