"""A tokenizer made from nothing: byte-level BPE that splits, marks and talks as Qwen's does.

Differences from Qwen's own, both on purpose: no NFC normaliser, so that decode(encode(x)) == x for every
text; and all markers of the dialect are tokens, as `<think>` is in Qwen3's, so that a turn ends exactly
where its closing marker does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from scout_protocol.dialect import Dialect, marker_pattern
from scout_protocol.errors import UserError

# Qwen2.5's and Qwen3's pre-tokenisation (their published tokenizer.json): one digit per token, a word
# keeps its leading space.
SPLIT_REGEX = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PAD, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, TURN_START, TURN_END)
N_BYTES = 256

# ChatML as Qwen writes it, without a system message of its own. `content` is used verbatim.
CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def _pieces(texts: Iterable[str], dialect: Dialect) -> Iterator[str]:
    """The texts without their markers: those are tokens already, BPE must not learn parts of them."""
    for text in texts:
        for piece in marker_pattern(dialect).split(text):
            if piece:
                yield piece


def build_tokenizer(texts: Iterable[str], dialect: Dialect, vocab: int, min_frequency: int = 2) -> Any:
    """Train a tokenizer with at most ``vocab`` tokens, special ones and markers included.

    The same texts in the same order give the same tokenizer. Fewer tokens come out where the texts do not
    have enough different pairs.

    Args:
        texts: what the policy will read and write, in the shape in which it will see it.
        dialect: whose eight markers become tokens.
        vocab: upper bound of the vocabulary, at least the bytes, the special tokens and the markers.
        min_frequency: how often a pair must occur to become a token.

    Raises:
        UserError: ``vocab`` is too small.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    fixed = N_BYTES + len(SPECIAL) + len(dialect.markers)
    if vocab < fixed:
        raise UserError("--vocab", vocab, f"must be at least {fixed}: 256 bytes, special tokens and markers")
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_REGEX), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab - len(SPECIAL) - len(dialect.markers),
        min_frequency=min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    core.train_from_iterator(_pieces(texts, dialect), trainer)
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    core.add_tokens([AddedToken(t, special=False, normalized=False) for t in dialect.markers])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=TURN_END,
        pad_token=PAD,
        padding_side="left",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def single_token_share(tokenizer: Any, titles: Iterable[str]) -> tuple[int, int]:
    """``(words that are one token with their leading space, all words)`` over the different words of titles.

    A tiny model copies a name far more easily when each part of it is one token.
    """
    words = sorted({word for title in titles for word in title.split() if word.isalpha()})
    one = sum(len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1 for word in words)
    return one, len(words)
