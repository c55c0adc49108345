"""The suite: rows of a named set, and one table over the evaluations of several sets."""

from __future__ import annotations

import random
from pathlib import Path

from scout_data.files import sha256_of
from scout_data.manifest import write_manifest
from scout_data.rows import make_row, write_rows
from scout_eval.benchmarks import BENCHMARKS, NAMES, Benchmark
from scout_eval.card import Card, load_card
from scout_eval.card_sheet import INTERVALS, published_blocks
from scout_eval.metrics import Group, Metrics
from scout_eval.sheet import Cell, Facts, Sheet, Table, estimate, number, share
from scout_eval.suite_files import hub_file, read_benchmark, suite_format
from scout_eval.summary import SUMMARY
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow


def benchmark(name: str) -> Benchmark:
    """The set of that name.

    Raises:
        UserError: no set has it.
    """
    if name not in BENCHMARKS:
        raise UserError("set", name, f"choose one of {', '.join(NAMES)}")
    return BENCHMARKS[name]


def suite_rows(
    name: str,
    output: Path,
    source: Path | None = None,
    prompt: str = "search_r1",
    limit: int | None = None,
    seed: int | None = None,
    format_name: str = "auto",
    revision: str | None = None,
) -> tuple[list[RLRow], int, Path]:
    """Write the rows of a set, with a manifest beside them; from the hub where no file is named.

    ``source`` may be a folder laid out as FlashRAG's. With a seed the rows are shuffled before they are cut
    to ``limit``. A row's id is its place in the file, so that parts of one file fit together.

    Returns:
        The rows, how many questions the file has, and the file.

    Raises:
        UserError: unknown set, unusable file, the hub cannot be reached.
    """
    which = benchmark(name)
    if limit is not None and limit < 1:
        raise UserError("limit", limit, "must be at least 1")
    if source is not None and source.is_dir():
        source = source / which.hub_file
    path = source or hub_file(which, revision)
    found = read_benchmark(which, path, format_name)
    rows = [
        make_row(q.text, q.golden_answers, prompt, name, which.split, index, q.extra)
        for index, q in enumerate(found)
    ]
    if seed is not None:
        random.Random(seed).shuffle(rows)
    rows = rows[:limit]
    write_rows(output, rows)
    shape = suite_format(path) if format_name == "auto" else format_name
    settings = {
        "set": name,
        "split": which.split,
        "limit": limit,
        "provenance": which.provenance,
        "source_sha256": sha256_of(path),
        "expected_rows": which.n,
    }
    write_manifest(output, rows, prompt, [(shape, path)], seed, settings)
    return rows, len(found), path


def list_sheet() -> Sheet:
    """What the suite consists of."""
    rows = [
        [Cell(b.data_source), Cell(f"{b.n:,}"), Cell(b.split), Cell(b.hops), Cell(b.provenance)]
        for b in BENCHMARKS.values()
    ]
    total = sum(b.n for b in BENCHMARKS.values())
    return Sheet(
        "The seven-benchmark suite",
        f"{total:,} questions in all.",
        [],
        [Table("Sets", ("name", "n", "split", "hops", "origin"), rows, prose=frozenset({4}))],
    )


def load_suite(folder: Path) -> dict[str, Card]:
    """The cards of the evaluations directly under a folder that hold questions of the suite, by set.

    Raises:
        UserError: there is none, or two hold the same set.
    """
    cards: dict[str, Card] = {}
    for path in sorted(p.parent for p in folder.glob(f"*/{SUMMARY}")):
        card = load_card(path)
        if card.control != "none":
            continue
        for name in card.metrics.by.get("data_source", {}):
            if name in cards:
                raise UserError(
                    "suite", folder, f"{cards[name].title} and {card.title} both hold {name}: keep one"
                )
            if name in BENCHMARKS:
                cards[name] = card
    if not cards:
        raise UserError("suite", folder, f"has no finished evaluation of {', '.join(NAMES)} under it")
    return cards


def suite_sheet(folder: Path, cards: dict[str, Card]) -> Sheet:
    """All sets in one table, published rows beneath, and how each was obtained."""
    groups: dict[str, Group] = {n: cards[n].metrics.by["data_source"][n] for n in NAMES if n in cards}
    models = list(dict.fromkeys(card.model for card in cards.values()))
    missing = [n for n in NAMES if n not in groups]
    mean = sum(g.em.mean for g in groups.values()) / len(groups)
    sheet = Sheet(
        f"Suite: {folder.name}",
        f"{', '.join(models)}: EM {mean:.3f}, mean over {len(groups)} of the {len(NAMES)} sets.",
        [f"Not evaluated: {', '.join(missing)}."] if missing else [],
    )
    if len(models) > 1:
        sheet.warnings.append("The sets were evaluated with different models.")
    for name, card in cards.items():
        sheet.warnings += [f"{name}: {warning}" for warning in card.warnings]
    rows = [
        [Cell(name), Cell(str(g.n)), *map(estimate, (g.em, g.em_folded, g.f1, g.cover_em))]
        for name, g in groups.items()
    ]
    columns = ("", "n", "EM", "folded EM", "F1", "cover-EM")
    sheet.blocks.append(Table("Ours", columns, rows, INTERVALS))
    rows = [
        [Cell(name), share(g.format), number(g.turns, 2), number(g.searches, 2), share(g.closed_book)]
        for name, g in groups.items()
    ]
    names = ("", "answered", "turns", "searches", "closed book")
    note = "Closed book: of the right answers, share that stood in no observation."
    sheet.blocks.append(Table("Behaviour", names, rows, note))
    first = next(iter(cards.values())).metrics
    combined = Metrics(first.overall, {"data_source": dict(groups)}, {}, 0, 0, 0.0)
    sheet.blocks += published_blocks(combined, ", ".join(models))
    facts = [
        (
            name,
            f"{c.fingerprint_id} · {c.fingerprint['retriever']}, top {c.fingerprint['top-k']}, "
            f"{c.fingerprint['corpus and index']}",
        )
        for name, c in cards.items()
    ]
    sheet.blocks.append(Facts("Fingerprints", facts))
    sheet.blocks.append(
        Facts("Splits", [(n, f"{BENCHMARKS[n].split}: {BENCHMARKS[n].provenance}") for n in groups])
    )
    return sheet
