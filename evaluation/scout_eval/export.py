"""verl's checkpoint as a Hugging Face folder, proven by playing: both must give the same greedy tokens.

The trainer stores its weights twice: the shards that it resumes from, and a copy in Hugging Face's format.
The shards are the truth; what is exported comes from the copy (or, where there is none, from the shards), is
loaded again as any user would load it, and answers the same prompts as the shards do.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scout_agent.model_folder import export_model
from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt

_SHARD = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")
_QUESTIONS = ("Who wrote Hamlet?", "What is the capital of France?", "Is water wet?", "When did it happen?")


@dataclass(frozen=True, slots=True)
class Exported:
    """What was checked: prompts played, tokens that were equal, and how far log-probabilities are apart."""

    out: Path
    source: str
    dtype: str
    n_shards: int
    n_prompts: int
    n_tokens: int
    max_logprob_gap: float


def export(
    checkpoint: Path,
    out: Path,
    start_model: Path | None = None,
    rows: Path | None = None,
    n_prompts: int = 16,
    max_tokens: int = 64,
) -> Exported:
    """Write ``out``; an earlier folder there is replaced only when the new one passed.

    Args:
        checkpoint: ``global_step_N``, its ``actor`` folder, or a run's folder (its newest step).
        out: the model folder to write.
        start_model: where the tokenizer's files come from; by default the checkpoint's own copy.
        rows: RL rows whose prompts are played; by default a few made-up questions.
        n_prompts: at most so many.
        max_tokens: of each answer.

    Raises:
        UserError: no checkpoint there, damaged shards, or different greedy tokens.
    """
    actor = find_actor(checkpoint)
    start_model = start_model or actor / "huggingface"
    if not (start_model / "config.json").is_file():
        raise UserError("model", start_model, "is not a model folder (no config.json): name one with --model")
    staging = out.with_name(f".{out.name}.{os.getpid()}.export")
    merged = out.with_name(f".{out.name}.{os.getpid()}.merged")
    try:
        reference, n_shards = load_shards(actor)
        source = actor / "huggingface"
        if not any(source.glob("*.safetensors")):
            source = merged
            _save(reference, actor / "huggingface", merged)
        export_model(source, start_model, staging)
        report = _check(reference, staging, rows, n_prompts, max_tokens)
        if out.exists():
            shutil.rmtree(out)
        staging.replace(out)
    except OSError as error:
        raise UserError(
            "out", out, f"{error.strerror or error}: choose a writable path with free space"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        shutil.rmtree(merged, ignore_errors=True)
    dtype = str(next(reference.parameters()).dtype).removeprefix("torch.")
    name = "shards" if source == merged else str(source)
    return Exported(out, name, dtype, n_shards, *report)


def find_actor(checkpoint: Path) -> Path:
    """The folder with the policy's shards.

    Raises:
        UserError: there is none.
    """
    newest: Path | None = None
    for tracker in (checkpoint, checkpoint / "ckpt"):
        file = tracker / "latest_checkpointed_iteration.txt"
        if file.is_file():
            newest = tracker / f"global_step_{file.read_text().strip()}"
    for folder in (checkpoint, checkpoint / "actor", *((newest / "actor", newest) if newest else ())):
        if any(_SHARD.fullmatch(p.name) for p in folder.glob("model_world_size_*.pt")):
            return Path(folder)
    raise UserError(
        "checkpoint", checkpoint, "holds no model_world_size_*.pt: name a global_step_N folder or a run's"
    )


def load_shards(actor: Path) -> tuple[Any, int]:
    """The model of verl's FSDP shards, put together here, and how many there were.

    Raises:
        UserError: a shard is missing or damaged, or the pieces do not make the configured model.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    found = sorted(
        (int(m[2]), int(m[1]), p) for p in actor.iterdir() if (m := _SHARD.fullmatch(p.name)) is not None
    )
    world = found[0][1]
    if [rank for rank, _, _ in found] != list(range(world)):
        raise UserError("checkpoint", actor, f"holds {len(found)} of {world} shards")
    shards = []
    for _, _, path in found:
        try:
            # Placements are pickled with the tensors: a checkpoint is trusted like the program that wrote it.
            shards.append(torch.load(path, map_location="cpu", weights_only=False))
        except Exception as error:  # unpickling raises whatever the bytes say
            raise UserError("checkpoint", path, f"cannot be read ({error}): is it complete?") from error
    weights = {name: _whole([shard[name] for shard in shards]) for name in shards[0]}
    config = AutoConfig.from_pretrained(str(actor / "huggingface"))
    model = AutoModelForCausalLM.from_config(config, dtype=next(iter(weights.values())).dtype)
    missing, left_over = model.load_state_dict(weights, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or ()) if config.tie_word_embeddings else set()
    missing = [name for name in missing if name not in tied]
    if missing or left_over:
        raise UserError("checkpoint", actor, f"does not fit its config.json: {[*missing, *left_over][:5]}")
    model.tie_weights()
    return model.eval().requires_grad_(False), world


def _whole(pieces: Sequence[Any]) -> Any:
    """One tensor of what the ranks hold of it: FSDP2 shards along one dimension, or every rank has all."""
    import torch

    if not hasattr(pieces[0], "placements"):
        return pieces[0]
    local = [piece.to_local() for piece in pieces]
    (placement, *others) = [p for p in pieces[0].placements if not p.is_replicate()] or [None]
    if others:
        raise UserError(
            "checkpoint", pieces[0].placements, "is sharded in two ways: merge it with verl.model_merger"
        )
    whole = local[0] if placement is None else torch.cat(local, dim=placement.dim)
    if whole.shape != pieces[0].shape:
        raise UserError(
            "checkpoint", tuple(whole.shape), f"pieces do not make a tensor of {tuple(pieces[0].shape)}"
        )
    return whole


def _save(model: Any, described: Path, out: Path) -> None:
    model.save_pretrained(str(out))
    for file in described.iterdir():
        if file.is_file() and not (out / file.name).exists():
            shutil.copy2(file, out / file.name)


def _check(
    reference: Any, exported: Path, rows: Path | None, n_prompts: int, max_tokens: int
) -> tuple[int, int, float]:
    """Play the prompts with both; returns prompts, tokens and the largest gap between log-probabilities."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from scout_agent.generation import Engine, Request
    from scout_agent.transformers_policy import prompt_token_ids

    tokenizer = AutoTokenizer.from_pretrained(str(exported))
    loaded = AutoModelForCausalLM.from_pretrained(str(exported), dtype="auto").eval().requires_grad_(False)
    prompts = [prompt_token_ids(tokenizer, messages) for messages in _prompts(rows, n_prompts)]
    limit = int(loaded.config.max_position_embeddings)
    params = {"temperature": 0.0, "max_tokens": max_tokens}
    results = []
    for model in (reference, loaded):
        eos = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
        engine = Engine(model, tokenizer, eos, max_tokens, limit)
        results.append(engine.generate([Request(ids, params) for ids in prompts]))
    gap, n_tokens = 0.0, 0
    for i, (one, two) in enumerate(zip(*results, strict=True)):
        if one.token_ids != two.token_ids:
            shown = f"{tokenizer.decode(one.token_ids)!r} and {tokenizer.decode(two.token_ids)!r}"
            raise UserError("export", f"prompt {i}", f"checkpoint and export answer differently: {shown}")
        n_tokens += len(one.token_ids)
        gap = max([gap, *(abs(a - b) for a, b in zip(one.logprobs, two.logprobs, strict=True))])
    return len(prompts), n_tokens, gap


def _prompts(rows: Path | None, n: int) -> list[list[dict[str, str]]]:
    if rows is None:
        return [load_prompt("brief").build(question) for question in _QUESTIONS[:n]]
    from scout_data.rows import read_rows

    return [row.prompt for row in read_rows(rows)[:n]]


def describe(done: Exported) -> str:
    """One line for the terminal."""
    return (
        f"{done.out}: {done.dtype} from {done.source}; reloaded, equal to {done.n_shards} shard(s) in all "
        f"{done.n_tokens} greedy tokens of {done.n_prompts} prompts (log-probabilities within "
        f"{done.max_logprob_gap:.1e})"
    )


def as_json(done: Exported) -> str:
    """The same for programs."""
    return json.dumps(
        {name: str(v) if isinstance(v := getattr(done, name), Path) else v for name in done.__slots__}
    )
