"""What a model's config.json says about its size: parameters, bytes of KV cache a token, activations a token.

The published shapes below are those of the Qwen2.5 model cards; a test holds the counts to the cards' and to
transformers' own models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError

_KNOWN = ("qwen2", "qwen3", "llama", "mistral")


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder with grouped-query attention and a gated MLP (Qwen2.5, Qwen3, Llama, Mistral).

    ``qkv_bias``: Qwen2's biases of q, k and v. ``qk_norm``: Qwen3's two norms a layer, one head wide each.
    """

    name: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qkv_bias: bool = True
    qk_norm: bool = False

    @property
    def layer_params(self) -> int:
        """Parameters of one layer."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * q + 2 * kv) + (q + 2 * kv if self.qkv_bias else 0)
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        return attention + 3 * self.hidden * self.intermediate + norms

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding, and of the output head where it is not the same matrix."""
        return self.vocab * self.hidden * (1 if self.tied else 2)

    @property
    def params(self) -> int:
        """All parameters."""
        return self.layers * self.layer_params + self.embedding_params + self.hidden

    def kv_bytes_per_token(self, element_bytes: int = 2) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * element_bytes

    def layer_activation_bytes_per_token(self, element_bytes: int = 2) -> int:
        """What autograd keeps of one layer for one token, with an attention kernel that keeps no scores.

        Inputs of the two norms and their outputs 4h; q, k, v rotated and the kernel's output 2(q + kv);
        gate, up, silu(gate) and their product 4i.
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return element_bytes * (4 * self.hidden + 2 * (q + kv) + 4 * self.intermediate)


PUBLISHED = {
    "3b": ModelShape("Qwen2.5-3B", 2048, 11008, 36, 16, 2, 128, 151936, tied=True),
    "7b": ModelShape("Qwen2.5-7B", 3584, 18944, 28, 28, 4, 128, 152064, tied=False),
    "14b": ModelShape("Qwen2.5-14B", 5120, 13824, 48, 40, 8, 128, 152064, tied=False),
    "72b": ModelShape("Qwen2.5-72B", 8192, 29568, 80, 64, 8, 128, 152064, tied=False),
}


def read_shape(path: Path) -> ModelShape:
    """The shape in a Hugging Face ``config.json``, or in the folder that holds it.

    Raises:
        UserError: no such file, not JSON, a missing key, or an architecture that is not counted here.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        described: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError("--model", path, "no config.json there: name a model folder or its config") from error
    except ValueError as error:
        raise UserError(str(file), error, "must be JSON") from error
    kind = described.get("model_type")
    if kind not in _KNOWN:
        raise UserError(f"{file}: model_type", kind, f"only {', '.join(_KNOWN)} are counted")
    try:
        heads = int(described["num_attention_heads"])
        return ModelShape(
            name=str(described.get("_name_or_path") or file.resolve().parent.name),
            hidden=int(described["hidden_size"]),
            intermediate=int(described["intermediate_size"]),
            layers=int(described["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(described.get("num_key_value_heads") or heads),
            head_dim=int(described.get("head_dim") or int(described["hidden_size"]) // heads),
            vocab=int(described["vocab_size"]),
            tied=bool(described.get("tie_word_embeddings", False)),
            qkv_bias=kind == "qwen2" or bool(described.get("attention_bias", False)),
            qk_norm=kind == "qwen3",
        )
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(str(file), repr(error), "is not a whole description of a model") from error


def shape_of(size: str, model: Path | None) -> ModelShape:
    """The model's own shape where a model is named, else the published one of that size.

    Raises:
        UserError: the size has no published model.
    """
    if model is not None:
        return read_shape(model)
    if size not in PUBLISHED:
        raise UserError(
            "--size", size, f"has no published model: name one with --model ({', '.join(PUBLISHED)} have)"
        )
    return PUBLISHED[size]
