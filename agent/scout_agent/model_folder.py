"""A model folder as transformers reads it, made from verl's checkpoint and checked by loading it."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from scout_protocol.errors import UserError


def export_model(source: Path, start_model: Path, out: Path) -> None:
    """Make ``out`` from the Hugging Face part of a checkpoint, and replace an earlier one at once.

    Weights and configuration come from ``source``, the tokenizer from the model that training started from:
    verl's copy of the tokenizer has been through one more save; the original files are what every other
    stage uses.

    Raises:
        UserError: the checkpoint has no weights in Hugging Face format, they do not reload, or the disk is
            full.
    """
    if not any(source.glob("*.safetensors")):
        raise UserError("checkpoint", source, "holds no weights: remove the run's folder and train again")
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        partial.mkdir(parents=True)
        for file in start_model.iterdir():
            if file.is_file() and not file.name.startswith(("model", "pytorch_model", "config.json", ".")):
                shutil.copy2(file, partial / file.name)
        for file in source.iterdir():
            if (
                file.name == "config.json"
                or file.name.startswith("model")
                or not (partial / file.name).exists()
            ):
                shutil.copy2(file, partial / file.name)
        write_dtype(partial)
        check_reload(partial)
        if out.exists():
            shutil.rmtree(out)
        partial.replace(out)
    except OSError as error:
        raise UserError("export", out, f"cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def weights_bytes(folder: Path, field: str = "--model") -> int:
    """The size of a model folder's weights, all files together.

    A safetensors file that was cut off would otherwise be found out a minute later, inside a worker.

    Raises:
        UserError: there are no weights, or a safetensors file is not as long as its header says.
    """
    files = [p for pattern in ("*.safetensors", "*.bin") for p in sorted(folder.glob(pattern))]
    if not files:
        raise UserError(field, folder, "has no weights (*.safetensors): make or fetch the model again")
    for weights in files:
        if weights.suffix != ".safetensors":
            continue
        try:
            with weights.open("rb") as file:
                size = weights.stat().st_size
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, size)))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            whole = bool(ends) and 8 + length + max(ends) == size
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            whole = False
        if not whole:
            raise UserError(field, weights, "is damaged or cut off: make or fetch the model again")
    return sum(p.stat().st_size for p in files)


def stored_dtype(weights: Path) -> str:
    """The type of the numbers in a safetensors file, as transformers writes it in a configuration.

    Source: the format's header, 8 bytes of length (little-endian) and that much JSON.
    """
    names = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    kinds = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    if len(kinds) != 1 or not kinds <= names.keys():
        raise UserError("checkpoint", weights, f"holds numbers of type {', '.join(sorted(kinds))}")
    return names[kinds.pop()]


def write_dtype(folder: Path) -> None:
    """Make the configuration name the type that the weights have.

    verl 0.9.1 writes "bfloat16" whatever it stores, and `from_pretrained` believes it: fp32 weights would be
    rounded by everybody who loads them.
    """
    config = folder / "config.json"
    content = json.loads(config.read_text(encoding="utf-8"))
    content["dtype"] = stored_dtype(next(folder.glob("*.safetensors")))
    content.pop("torch_dtype", None)
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check_reload(folder: Path) -> None:
    """Load the folder as any user would and run one token through it.

    Raises:
        UserError: weights are missing or left over, or what comes out is not finite.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model, info = AutoModelForCausalLM.from_pretrained(str(folder), output_loading_info=True, dtype="auto")
    wrong = {
        name: sorted(info[name])
        for name in ("missing_keys", "unexpected_keys", "mismatched_keys")
        if info[name]
    }
    if wrong:
        raise UserError("export", folder, f"does not reload: {wrong}")
    ids = tokenizer("a", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        if not torch.isfinite(model(input_ids=ids).logits).all():
            raise UserError("export", folder, "is not finite: lower the learning rate and train again")
