"""Which cluster overlay fits this machine, and which engine a cluster runs best; no torch is imported."""

from __future__ import annotations

import os
from pathlib import Path

NODE = 8  # cards of a whole node

# verl 0.9.1 from PyPI everywhere: its agent loop, dynamic sampling and restarts are those that this project
# tests most, and upstream's support for vLLM, SGLang and Ascend is newest there. Others are named explicitly.
ENGINES: dict[str, str] = {}


def engine_for(cluster: str) -> str:
    """The engine of a cluster where none is named."""
    return ENGINES.get(cluster, "verl")


def detect(dev: Path = Path("/dev")) -> tuple[str, str]:
    """``(cluster overlay, why)`` from the accelerators in ``dev`` that this process may use.

    An NVIDIA node with fewer than eight cards is used as one card: no overlay plans for other numbers.
    """
    ascend = _usable(dev, "davinci", "ASCEND_RT_VISIBLE_DEVICES")
    if ascend:
        return "64x910b", f"{ascend} Ascend cards in this node; the overlay plans for 8 nodes of 8"
    nvidia = _usable(dev, "nvidia", "CUDA_VISIBLE_DEVICES")
    if nvidia >= NODE:
        return "8xa100", f"{nvidia} NVIDIA cards in this machine"
    if nvidia:
        return "1gpu", f"{nvidia} NVIDIA card{'s' if nvidia > 1 else ''} in this machine; one is used"
    return "cpu", "no accelerator in this machine"


def _usable(dev: Path, stem: str, mask: str) -> int:
    cards = [p for p in dev.glob(f"{stem}[0-9]*") if p.name.removeprefix(stem).isdigit()]
    visible = os.environ.get(mask)
    if visible is None:
        return len(cards)
    named = [v for v in visible.split(",") if v.strip() and v.strip() != "-1"]
    return min(len(cards), len(named))
