"""Prompt lengths in tokens, by the real tokenizer and its real chat template, fast enough for 169,615 rows.

Rows whose prompts differ in the question alone share a template: it is rendered once, and tokenised only
from a word shortly before the question on, since a byte-level tokenizer splits at words first. That this
holds for the tokenizer at hand is checked on a sample; where it does not, every prompt is tokenised whole.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scout_protocol.errors import UserError

MARK = "\ue000QUESTION\ue001"  # private use: in no question
_CHUNK = 8192
_CHECKED = 64
# A space between two words, with a whole word after it.
_SAFE_CUT = re.compile(r"(?<=[A-Za-z]) (?=[A-Za-z]+[^A-Za-z])")
_LONG = 20_000  # characters of a question from which it is tokenised on its own

Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt around its question: rendered text before and after, and what is already counted of it."""

    before: str
    after: str
    counted: int  # tokens of the rendered text ahead of ``before``


def load_tokenizer(name: str) -> Any:
    """A Hugging Face tokenizer, from a folder or the hub, that has a chat template.

    Raises:
        UserError: it cannot be loaded, or has no chat template.
    """
    if not Path(name).exists() and name.startswith((".", "/")):
        raise UserError("--tokenizer", name, "no such folder: give a Hugging Face model folder or hub name")
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        told = str(error).splitlines()[0]
        raise UserError(
            "--tokenizer", name, f"cannot be loaded ({told}): give a model folder or hub name"
        ) from error
    if not getattr(tokenizer, "chat_template", None):
        raise UserError("--tokenizer", name, "has no chat template: give the instruct model's folder")
    return tokenizer


def template_key(
    messages: Sequence[dict[str, Any]] | None, question: str
) -> tuple[tuple[str, str], ...] | None:
    """The messages with `MARK` for the question; None where they do not have it exactly once."""
    key = []
    found = 0
    for message in messages or ():
        content = message.get("content") or ""
        # the last place: the question stands at the end, and a short one may be part of the instructions
        head, slot, tail = content.rpartition(question)
        if slot:
            found += 1
            content = head + MARK + tail
        key.append((message.get("role") or "", content))
    return tuple(key) if found == 1 else None


def token_lengths(tokenizer: Any, prompts: Iterable[tuple[Messages, str]]) -> list[int]:
    """Tokens of each ``(messages, question)`` as the rollout sees it, generation prompt included."""
    backend = tokenizer.backend_tokenizer
    templates: dict[Any, Template | None] = {}
    lengths: list[int] = []
    checked = 0
    for chunk in _chunks(prompts, _CHUNK):
        texts, extra = [], []
        for messages, question in chunk:
            template = _template(tokenizer, templates, messages, question)
            if template is None or len(question) > _LONG or question != question.strip():
                texts.append(render(tokenizer, messages))
                extra.append(0)
            else:
                texts.append(f"{template.before}{question}{template.after}")
                extra.append(template.counted)
        found = [n + more for n, more in zip(_count(backend, texts), extra, strict=True)]
        sample = range(0, len(chunk), max(1, len(chunk) // _CHECKED))
        whole = _count(backend, [render(tokenizer, chunk[i][0]) for i in sample])
        if [found[i] for i in sample] != whole:  # this tokenizer joins across words: no short cut
            found = _count(backend, [render(tokenizer, messages) for messages, _ in chunk])
        checked += len(whole)
        lengths += found
    return lengths


def render(tokenizer: Any, messages: Messages) -> str:
    """The text of a prompt in front of the model.

    Raises:
        UserError: the template refuses these messages, e.g. a system message.
    """
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
    except Exception as error:  # templates raise whatever they like
        raise UserError(
            "chat template", error, "refuses these messages: choose a prompt without a system message"
        ) from error


def _template(
    tokenizer: Any, known: dict[Any, Template | None], messages: Messages, question: str
) -> Template | None:
    key = template_key(messages, question)
    if key is None:
        return None
    if key not in known:
        if len(known) > 1000:  # prompts that differ beyond their question: nothing is shared
            return None
        marked = [{"role": role, "content": content} for role, content in key]
        before, slot, after = render(tokenizer, marked).partition(MARK)
        known[key] = None
        if slot and MARK not in after:
            cuts = [m.start() for m in _SAFE_CUT.finditer(before)]
            cut = cuts[-1] if cuts else 0
            ahead = _count(tokenizer.backend_tokenizer, [before[:cut]])[0] if cut else 0
            known[key] = Template(before[cut:], after, ahead)
    return known[key]


def _count(backend: Any, texts: list[str]) -> list[int]:
    # the template has the special tokens already, as `apply_chat_template(tokenize=True)` assumes, too
    encoded = backend.encode_batch_fast(texts, add_special_tokens=False)
    return [len(one) for one in encoded]


def _chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    chunk = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
