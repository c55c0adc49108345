"""A checkpoint of a warm-up as a model folder that everything else loads."""

from __future__ import annotations

import shutil
from pathlib import Path

from scout_agent.model_folder import export_model
from scout_sft.lora import merge_folder


def export_checkpoint(checkpoint: Path, start_model: Path, out: Path, lora: tuple[int, float] | None) -> None:
    """Make ``out`` from ``checkpoint`` (``global_step_N``); reloaded once before it gets its name.

    Args:
        lora: rank and alpha of the adapter in it, which is merged; None where all weights were trained.

    Raises:
        UserError: the checkpoint holds no weights, or they do not reload.
    """
    source = checkpoint / "huggingface"
    if lora is None:
        export_model(source, start_model, out)
        return
    between = out.with_name(f".{out.name}.merged")
    try:
        merge_folder(source, between, *lora)
        export_model(between, start_model, out)
    finally:
        shutil.rmtree(between, ignore_errors=True)
