"""The accelerators that clusters are made of: sizes and peak rates from their makers' data sheets."""

from __future__ import annotations

from dataclasses import dataclass

from scout_protocol.errors import UserError


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. ``memory_gib`` is what its driver reports, not the round number on the box."""

    name: str
    memory_gib: float
    bf16_tflops: float
    memory_gb_s: float
    host_link_gb_s: float  # to host memory, one way


A100 = Device("A100-80G", 79.2, 312.0, 1935.0, 25.0)  # NVIDIA's data sheet, PCIe version
ASCEND_910B = Device("Ascend 910B", 60.9, 313.0, 1600.0, 25.0)  # 64 GB, of which the driver keeps some
# Two cores of a laptop; the rate is what GRPO updates of the tiny model were measured at (docs/log.md).
CPU = Device("CPU", 8.0, 0.18, 20.0, 20.0)

BY_CLUSTER = {"cpu": CPU, "1gpu": A100, "8xa100": A100, "64x910b": ASCEND_910B}


def device_of(cluster: str, kind: str) -> Device:
    """The device of a cluster overlay; ``kind`` is ``trainer.device`` and decides where the name is unknown.

    Raises:
        UserError: neither is known.
    """
    by_kind = {"cpu": CPU, "cuda": A100, "npu": ASCEND_910B}
    found = BY_CLUSTER.get(cluster) or by_kind.get(kind)
    if found is None:
        raise UserError("trainer.device", kind, f"choose one of {', '.join(by_kind)}")
    return found
