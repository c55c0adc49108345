"""Prompts are files: one per name under ``prompts/``, and their hash goes into every trace and manifest.

A file holds messages separated by lines ``=== role``; ``{question}`` is replaced once, literally.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

import msgspec

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError

_HEADER = re.compile(r"^=== (system|user)\n", re.MULTILINE)
PLACEHOLDER = "{question}"


class Prompt(msgspec.Struct, frozen=True):
    """A prompt template: its name, its dialect's name, its messages and the SHA-256 of its file."""

    name: str
    dialect: str
    messages: tuple[tuple[str, str], ...]
    sha256: str

    def build(self, question: str) -> list[dict[str, str]]:
        """Chat messages for one question.

        Raises:
            UserError: the question is empty.
        """
        if not question.strip():
            raise UserError("question", repr(question), "must not be empty")
        return [
            {"role": role, "content": text.replace(PLACEHOLDER, question)} for role, text in self.messages
        ]


@cache
def prompt_names() -> list[str]:
    """The names of all prompts that ship with Scout."""
    folder = resources.files("scout_protocol") / "prompts"
    return sorted(p.name.removesuffix(".txt") for p in folder.iterdir() if p.name.endswith(".txt"))


@cache
def load_prompt(name: str) -> Prompt:
    """The prompt of that name.

    Raises:
        UserError: no such prompt, or its file is not well formed.
    """
    if name not in prompt_names():
        raise UserError("prompt", name, f"choose one of {', '.join(prompt_names())}")
    raw = (resources.files("scout_protocol") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    first, _, body = raw.partition("\n")
    key, _, dialect = first.partition(":")
    pieces = _HEADER.split(body)
    messages = tuple((role, text.strip("\n")) for role, text in zip(pieces[1::2], pieces[2::2], strict=True))
    if key != "dialect" or not messages or sum(t.count(PLACEHOLDER) for _, t in messages) != 1:
        raise UserError("prompt", name, "needs a 'dialect:' line, '=== role' messages and one {question}")
    return Prompt(name, get_dialect(dialect.strip()).name, messages, hashlib.sha256(raw.encode()).hexdigest())


def recognise(messages: list[dict[str, str]], question: str) -> Prompt | None:
    """The prompt that these messages were built from; None where it is none of ours."""
    for name in prompt_names():
        prompt = load_prompt(name)
        if messages == prompt.build(question):
            return prompt
    return None
