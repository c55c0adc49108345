"""What a check says: one line with a verdict, and what to do where it is not ok."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SCHEMA = "scout.preflight/1"


class Verdict(enum.StrEnum):
    OK = "ok"
    WARN = "warn"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Finding:
    """``found`` is a fact, ``remedy`` an action; the remedy of an ok finding is empty."""

    name: str
    verdict: Verdict
    found: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding as shown."""
        said = f"{self.found}: {self.remedy}" if self.remedy else self.found
        return f"{self.verdict:<7} {self.name:<14} {' '.join(said.split())}"


def ok(name: str, found: str) -> Finding:
    return Finding(name, Verdict.OK, found)


def warn(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, Verdict.WARN, found, remedy)


def refuse(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, Verdict.REFUSE, found, remedy)


def worst(findings: Iterable[Finding]) -> Verdict:
    """The worst verdict; ok where there is none."""
    return max((f.verdict for f in findings), key=list(Verdict).index, default=Verdict.OK)


def report(findings: Sequence[Finding], skipped: Sequence[str], took_s: float) -> dict[str, Any]:
    """The whole preflight as plain values, schema ``scout.preflight/1``."""
    return {
        "schema": SCHEMA,
        "verdict": str(worst(findings)),
        "findings": [asdict(f) | {"verdict": str(f.verdict)} for f in findings],
        "skipped": list(skipped),
        "took_s": round(took_s, 3),
    }
