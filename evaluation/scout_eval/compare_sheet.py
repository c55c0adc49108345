"""A comparison as a sheet."""

from __future__ import annotations

from collections.abc import Sequence

from scout_eval.compare import Change, Comparison, Flip
from scout_eval.sheet import Cell, Facts, Listing, Sheet, Table, difference, p_value

_DIGITS = {"turns": 2, "searches": 2, "tokens": 1}


def compare_sheet(found: Comparison) -> Sheet:
    """All blocks of the comparison, in reading order."""
    em = found.changes["EM"]
    d = em.difference
    verdict = "no difference is shown" if d.low <= 0 <= d.high else "the interval excludes 0"
    sheet = Sheet(
        "Evaluation comparison",
        f"B against A on {found.n} questions: EM {em.a:.3f} → {em.b:.3f}, difference {d.mean:+.3f} "
        f"[{d.low:+.3f}, {d.high:+.3f}], p = {p_value(d.p)}: {verdict}.",
        list(found.warnings),
        [
            Facts(
                "What is compared",
                [("A", f"{found.a} ({found.model_a})"), ("B", f"{found.b} ({found.model_b})")],
            )
        ],
    )
    rows = [_row(name, change, _DIGITS.get(name, 3)) for name, change in found.changes.items()]
    columns = ("", "A", "B", "B − A", "p")
    note = "Paired bootstrap over questions: 10,000 resamples, 95 % intervals, two-sided p (at least 0.0002)."
    sheet.blocks.append(Table("Numbers", columns, rows, note))
    if found.mcnemar:
        m = found.mcnemar
        sheet.blocks.append(
            Table(
                "Right and wrong",
                ("", "B right", "B wrong"),
                [
                    [Cell("A right"), Cell(str(m.both)), Cell(str(m.only_a))],
                    [Cell("A wrong"), Cell(str(m.only_b)), Cell(str(m.neither))],
                ],
                f"McNemar's exact test on the {m.only_a + m.only_b} that flipped: p = {p_value(m.p)}.",
            )
        )
    if found.by:
        rows = [
            [
                Cell(value if facet == "data_source" else f"{facet} {value}"),
                Cell(str(change.n)),
                *_row("", change, 3)[1:],
            ]
            for facet, groups in found.by.items()
            for value, change in groups.items()
        ]
        note = "One test a row: among many rows some fall below 0.05 by chance."
        sheet.blocks.append(Table("EM by kind of question", ("", "n", *columns[1:]), rows, note))
    sheet.blocks.append(_listing("Questions won", found.won, "B is right where A was not."))
    sheet.blocks.append(_listing("Questions lost", found.lost, "A was right where B is not."))
    same = [("all settings", "equal")]
    pairs = [(name, f"A: {one}; B: {two}") for name, (one, two) in found.settings.items()]
    sheet.blocks.append(Facts("What differs in the fingerprints", pairs or same))
    return sheet


def _row(name: str, change: Change, digits: int) -> list[Cell]:
    return [
        Cell(name),
        Cell(f"{change.a:.{digits}f}"),
        Cell(f"{change.b:.{digits}f}"),
        difference(change.difference, digits),
        Cell(p_value(change.difference.p)),
    ]


def _listing(title: str, flips: Sequence[Flip], note: str) -> Listing:
    items = [
        (
            f.question,
            (("gold", " | ".join(f.golden_answers)), ("A", f.answer_a), ("B", f.answer_b), ("id", f.key)),
        )
        for f in flips
    ]
    return Listing(f"{title}: {len(flips)}", items, note)
