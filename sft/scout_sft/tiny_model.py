"""`scout sft init`: a tiny model of Qwen3's architecture and its tokenizer, both made from nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scout_protocol.dialect import Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.observation import Document, render
from scout_protocol.records import RLRow
from scout_sft.plan import oracle_steps
from scout_sft.tokenizer import build_tokenizer, single_token_share

NOTE = "scout_init.json"
MAX_DOCUMENTS = 50_000  # enough text for any vocabulary that makes sense here


@dataclass(frozen=True, slots=True)
class TinySpec:
    """Sizes of the model. ``vocab`` is an upper bound: the tokenizer may find fewer tokens.

    ``min_frequency`` is how often a pair must occur to become a token. Low values give rare words a token
    of their own, whose embedding the warm-up then hardly ever trains.
    """

    vocab: int = 2048
    min_frequency: int = 8
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    max_positions: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "layers", "heads", "max_positions", "min_frequency"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')}", getattr(self, name), "must be at least 1")
        if self.seed < 0:
            raise UserError("--seed", self.seed, "must not be negative")
        if self.hidden % self.heads or (self.hidden // self.heads) % 2:
            # rotary embeddings turn pairs of channels
            raise UserError(
                "--hidden",
                self.hidden,
                f"must be {self.heads} heads (--heads) times an even number of channels",
            )


def read_corpus(path: Path, limit: int = MAX_DOCUMENTS) -> list[Document]:
    """The first ``limit`` documents of a JSONL corpus ({id, title, text}).

    Raises:
        UserError: no such file, a line that is not such an object (with its number), or no document.
    """
    documents: list[Document] = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if len(documents) == limit:
                    break
                if not line.strip():
                    continue
                try:
                    item = json.loads(line)
                    documents.append(Document(str(item["id"]), str(item["title"]), str(item["text"])))
                except (ValueError, KeyError, TypeError) as error:
                    raise UserError(
                        "--corpus", f"{path}:{number}", 'must be a JSON object {"id", "title", "text"}'
                    ) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("--corpus", path, f"cannot be read as UTF-8 text ({error})") from error
    if not documents:
        raise UserError("--corpus", path, "holds no document")
    return documents


def training_texts(documents: Iterable[Document], rows: Iterable[RLRow], dialect: Dialect) -> Iterator[str]:
    """What the model will see, in the shape in which it will see it.

    A name gets its token with the leading space that it has after `Title:`, inside a sentence and after a
    marker; a bare list of names would teach BPE the spelling at the start of a line, which never occurs.
    Answers are left out: a training answer must not become one token where a held-out one is several.
    """
    for document in documents:
        yield render([document], dialect)
        yield f" {document.title}"
    for row in rows:
        for message in row.prompt:
            yield f"{message['role']}\n{message['content']}"
        yield "assistant\n"
        for step in oracle_steps(row):
            yield step.think
            yield f" {step.query} "


def build_model(tokenizer: Any, spec: TinySpec) -> Any:
    """A randomly initialised Qwen3 (fp32) for the tokenizer; the same spec gives the same weights."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden,
        intermediate_size=3 * spec.hidden,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        head_dim=spec.hidden // spec.heads,
        max_position_embeddings=spec.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def _digest(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()


def init_model(
    documents: Sequence[Document],
    rows: Sequence[RLRow],
    out: Path,
    spec: TinySpec,
    dialect_name: str = "search-r1",
) -> dict[str, Any]:
    """Build tokenizer and model and put both into ``out`` as one Hugging Face folder.

    Made already from the same inputs, it is left as it is, so a pipeline may ask again.

    Returns:
        What was built: parameters, vocabulary, and how many words of the titles are single tokens.

    Raises:
        UserError: ``out`` holds something else, or the vocabulary is too small.
    """
    from safetensors import SafetensorError
    from transformers.utils import logging

    dialect = get_dialect(dialect_name)
    texts = list(training_texts(documents, rows, dialect))
    inputs = {"spec": asdict(spec), "dialect": dialect.name, "texts_sha256": _digest(texts)}
    if out.exists():
        note = out / NOTE
        known: dict[str, Any] = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
        if {key: known.get(key) for key in inputs} == inputs:
            return known
        raise UserError("--out", out, "exists already, made from other inputs: remove it or choose another")
    logging.disable_progress_bar()
    tokenizer = build_tokenizer(texts, dialect, spec.vocab, spec.min_frequency)
    model = build_model(tokenizer, spec)
    one, words = single_token_share(tokenizer, [document.title for document in documents])
    facts = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocab": len(tokenizer),
        "title_words": words,
        "title_words_one_token": one,
        **inputs,
    }
    partial = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        partial.mkdir(parents=True)
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        (partial / NOTE).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
        partial.replace(out)
    except (OSError, SafetensorError) as error:
        why = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise UserError(
            "--out", out, f"cannot be written: {why}: free some space or choose another folder"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return facts
