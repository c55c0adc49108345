"""What an audit says: findings with a verdict each, and the numbers that its page draws."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from scout_protocol.errors import UserError


class Verdict(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    REFUSE = "refuse"


_RANK = {Verdict.OK: 0, Verdict.WARN: 1, Verdict.REFUSE: 2}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; ok where there is none."""
    return max(verdicts, key=_RANK.__getitem__, default=Verdict.OK)


class Finding(msgspec.Struct):
    """One question asked of the data. ``rows`` are the first few row numbers concerned, from 0."""

    name: str
    verdict: Verdict
    said: str
    numbers: dict[str, Any] = {}
    rows: list[int] = []
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """What a user chooses.

    ``steps`` x ``batch`` rows are the first window. The ``max_*`` are limits that a row should keep;
    above ``warn_share`` and ``refuse_share`` of the rows that break
    them are told. ``allow`` names findings whose refusal is
    only a warning.
    """

    steps: int = 200
    batch: int = 8
    max_answer_words: int = 20
    max_prompt_tokens: int = 1024
    max_question_chars: int = 10_000
    warn_share: float = 0.001
    refuse_share: float = 0.01
    tokenizer: str | None = None
    allow: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "max_answer_words", "max_prompt_tokens", "max_question_chars"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name.replace('_', '-')}", getattr(self, name), "must be at least 1")
        if not 0 <= self.warn_share <= self.refuse_share <= 1:
            told = f"{self.warn_share} and {self.refuse_share}"
            raise UserError("--warn-share and --refuse-share", told, "must ascend between 0 and 1")


class Audit(msgspec.Struct):
    """The whole audit of one file. ``charts`` are series by name, for the page."""

    file: str
    sha256: str
    rows: int
    verdict: Verdict
    findings: list[Finding]
    not_checked: list[str]
    settings: dict[str, Any]
    charts: dict[str, Any]


def counted(
    name: str,
    rows: list[int],
    total: int,
    what: str,
    remedy: str = "",
    refuse_share: float = 0.0,
    warn_share: float = 0.0,
    numbers: dict[str, Any] | None = None,
) -> Finding:
    """A finding about rows that break a rule, told from ``warn_share`` and ``refuse_share`` of all on."""
    verdict = Verdict.OK if len(rows) <= warn_share * total else Verdict.WARN
    if rows and len(rows) > refuse_share * total:
        verdict = Verdict.REFUSE
    share = len(rows) / total if total else 0.0
    said = f"{len(rows):,} of {total:,} rows {what}"
    if rows:
        said = f"{len(rows):,} of {total:,} rows ({share:.2%}) {what}, the first: row {rows[0]}"
    facts = {"rows": len(rows), "share": share} | (numbers or {})
    return Finding(name, verdict, said, facts, rows[:10], "" if verdict is Verdict.OK else remedy)
