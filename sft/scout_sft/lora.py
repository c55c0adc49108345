"""LoRA weights merged into the model they were trained on: W + (alpha / rank) B A.

Source: Hu et al. 2021 (arXiv:2106.09685), eq. 3. verl 0.9.1 saves a model under peft with peft's names
(``base_model.model.….q_proj.base_layer.weight``, ``….lora_A.default.weight``), which no plain loader reads.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from scout_protocol.errors import UserError

if TYPE_CHECKING:
    import torch

_PREFIX = "base_model.model."
_BASE, _A, _B = ".base_layer.", ".lora_A.default.weight", ".lora_B.default.weight"


def merged(state: dict[str, torch.Tensor], rank: int, alpha: float) -> dict[str, torch.Tensor]:
    """The weights under the model's own names.

    Args:
        state: weights by peft's names; A is (rank, in), B is (out, rank).

    Raises:
        UserError: there is no adapter in it, or one of another rank.
    """
    plain: dict[str, torch.Tensor] = {}
    n_adapters = 0
    for name, weight in state.items():
        if name.endswith((_A, _B)):
            continue
        target = name.removeprefix(_PREFIX)
        if _BASE not in target:
            plain[target] = weight
            continue
        target = target.replace(_BASE, ".")
        if not target.endswith(".weight"):
            plain[target] = weight
            continue
        module = name.removesuffix(_BASE + "weight")
        a_RI, b_OR = state[module + _A], state[module + _B]
        if a_RI.shape[0] != rank:
            raise UserError("--lora-rank", rank, f"the checkpoint's adapter has rank {a_RI.shape[0]}")
        delta_OI = (b_OR.float() @ a_RI.float()) * (alpha / rank)
        plain[target] = (weight.float() + delta_OI).to(weight.dtype)
        n_adapters += 1
    if not n_adapters:
        raise UserError("checkpoint", "no LoRA weights", "remove the run's folder and train again")
    return plain


def merge_folder(source: Path, out: Path, rank: int, alpha: float) -> None:
    """Make ``out`` from the Hugging Face part of a LoRA checkpoint: its other files, and merged weights."""
    from safetensors.torch import load_file, save_file

    state: dict[str, torch.Tensor] = {}
    for weights in sorted(source.glob("*.safetensors")):
        state |= load_file(weights)
    out.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.is_file() and not file.name.startswith("model"):
            shutil.copy2(file, out / file.name)
    plain = {name: weight.contiguous() for name, weight in merged(state, rank, alpha).items()}
    save_file(plain, out / "model.safetensors", metadata={"format": "pt"})
