"""A page of numbers as data: the terminal, Markdown and HTML print the same tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scout_eval.statistics import Difference, Estimate


@dataclass(frozen=True, slots=True)
class Cell:
    """A value as text, and its interval where it has one."""

    text: str
    interval: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under column names; the first column names the row. ``rule_after`` draws a line below
    that many rows, e.g. between our numbers and others'."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    rule_after: int = 0
    prose: frozenset[int] = frozenset()  # columns of running text: aligned left, and they may wrap


@dataclass(frozen=True, slots=True)
class Facts:
    """Names with values."""

    title: str
    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing, for HTML alone: its numbers stand in a table as well."""

    title: str
    svg: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Panels:
    """Small drawings beside each other that share one legend: pairs of a line's CSS class and its name."""

    title: str
    figures: Sequence[Figure]
    legend: Sequence[tuple[str, str]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Listing:
    """Things with details, one after the other, such as questions won."""

    title: str
    items: Sequence[tuple[str, Sequence[tuple[str, str]]]]
    note: str = ""


Block = Table | Facts | Figure | Panels | Listing


@dataclass(slots=True)
class Sheet:
    """A whole page."""

    title: str
    headline: str
    warnings: list[str] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)


NOTHING = Cell("–")


def number(value: float | None, digits: int = 3) -> Cell:
    """A number, or a dash."""
    return NOTHING if value is None else Cell(f"{value:.{digits}f}")


def share(value: float | None) -> Cell:
    """A share in percent, or a dash."""
    return NOTHING if value is None else Cell(f"{value:.1%}")


def estimate(value: Estimate | None) -> Cell:
    """A mean with its interval, or a dash."""
    return NOTHING if value is None else Cell(f"{value.mean:.3f}", f"{value.low:.3f}–{value.high:.3f}")


def difference(value: Difference, digits: int = 3) -> Cell:
    """A signed difference with its interval."""
    return Cell(f"{value.mean:+.{digits}f}", f"{value.low:+.{digits}f} to {value.high:+.{digits}f}")


def p_value(p: float) -> str:
    """A p value as papers print it."""
    return f"{p:.3f}" if p >= 0.001 else f"{p:.1e}"


def seconds(value: float | None) -> str:
    """A duration with as many digits as it has meaning."""
    if value is None:
        return "–"
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"
