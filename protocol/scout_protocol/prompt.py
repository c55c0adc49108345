"""Prompts are files: one per name under ``prompts/``, and their hash goes into every trace and manifest.

A file holds messages separated by lines ``=== role``; ``{question}`` is replaced once, literally, and so is
``{facts}`` in the prompts that have it: what earlier questions of an inquiry established, one fact a line.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

import msgspec

from scout_protocol.dialect import get_dialect
from scout_protocol.errors import UserError

_HEADER = re.compile(r"^=== (system|user)\n", re.MULTILINE)
PLACEHOLDER = "{question}"
FACTS = "{facts}"
NO_FACTS = "- none yet"
_SLOTS = re.compile(f"{re.escape(PLACEHOLDER)}|{re.escape(FACTS)}")


class Prompt(msgspec.Struct, frozen=True):
    """A prompt template: its name, its dialect's name, its messages and the SHA-256 of its file."""

    name: str
    dialect: str
    messages: tuple[tuple[str, str], ...]
    sha256: str

    @property
    def has_facts(self) -> bool:
        """Whether the prompt has room for a fact list."""
        return any(FACTS in text for _, text in self.messages)

    def build(self, question: str, facts: Sequence[str] = ()) -> list[dict[str, str]]:
        """Chat messages for one question.

        Args:
            facts: what is known already, one line each; left out by prompts without a fact list.

        Raises:
            UserError: the question is empty.
        """
        if not question.strip():
            raise UserError("question", repr(question), "must not be empty")
        listed = "\n".join(f"- {' '.join(fact.split())}" for fact in facts) or NO_FACTS
        values = {PLACEHOLDER: question, FACTS: listed}
        # in one pass: a question that mentions {facts} stays as it is
        return [
            {"role": role, "content": _SLOTS.sub(lambda slot: values[slot.group()], text)}
            for role, text in self.messages
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
    if key != "dialect" or not messages or not _well_formed([t for _, t in messages]):
        raise UserError("prompt", name, "needs a 'dialect:' line, '=== role' messages and one {question}")
    return Prompt(name, get_dialect(dialect.strip()).name, messages, hashlib.sha256(raw.encode()).hexdigest())


def _well_formed(texts: Sequence[str]) -> bool:
    return sum(t.count(PLACEHOLDER) for t in texts) == 1 and sum(t.count(FACTS) for t in texts) <= 1


def recognise(messages: list[dict[str, str]], question: str) -> Prompt | None:
    """The prompt that these messages were built from; None where it is none of ours."""
    for name in prompt_names():
        prompt = load_prompt(name)
        if messages == prompt.build(question) or (
            prompt.has_facts and _with_facts(prompt, messages, question)
        ):
            return prompt
    return None


def _with_facts(prompt: Prompt, messages: list[dict[str, str]], question: str) -> bool:
    """Whether the messages are the prompt with some fact list."""
    if [m.get("role") for m in messages] != [role for role, _ in prompt.messages]:
        return False
    for message, (_, text) in zip(messages, prompt.messages, strict=True):
        before, slot, after = text.partition(FACTS)
        before, after = (part.replace(PLACEHOLDER, question) for part in (before, after))
        content = message.get("content", "")
        facts = content[len(before) : len(content) - len(after)]
        if content != before + (facts if slot else "") + after:
            return False
        if slot and not all(line.startswith("- ") for line in facts.split("\n")):
            return False
    return True
