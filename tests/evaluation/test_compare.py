"""Two evaluations on the same questions, counted by hand."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from scout_eval.cli import main
from scout_eval.compare import compare
from scout_eval.compare_sheet import compare_sheet
from scout_eval.metrics import outcome, summarise
from scout_eval.sheet_html import sheet_page
from scout_eval.sheet_text import markdown, print_sheet
from scout_eval.summary import Identity, Summary, write_json
from scout_protocol.errors import UserError
from scout_protocol.records import StopReason, Trace

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, make_trace: Callable[..., Trace]) -> Write:
    """An evaluation's folder with the given EM per question (None: an outage)."""

    def make(
        name: str, ems: dict[int, float | None], samples: int = 1, tokens: int | None = 10, **identity: Any
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        traces = []
        for i, em in ems.items():
            for sample in range(samples):
                stop = StopReason.INFRA_ERROR if em is None else StopReason.ANSWER
                trace = make_trace(i, em or 0.0, stop, tokens=tokens)
                if trace.score:
                    trace.score["answer"] = "City" if em else f"{name} says"
                trace.extra["sample"] = sample
                traces.append(trace)
        (folder / "traces.jsonl").write_bytes(b"".join(msgspec.json.encode(t) + b"\n" for t in traces))
        who = Identity("s", "none", name, "ab" * 32, 0, 0.0, {"max_turns": 4}, "", samples=samples)
        summary = Summary(
            msgspec.structs.replace(who, **identity), summarise([outcome(t) for t in traces]),
            "rows", len(ems), "http://t", f"model {name}", "2026", 1.0, 1.0, 0, "c", {},
        )  # fmt: skip
        write_json(folder / "summary.json", summary)
        return folder

    return make


def ems(*groups: tuple[int, float]) -> dict[int, float | None]:
    """{question: EM} from (count, EM) in order."""
    values = [em for count, em in groups for _ in range(count)]
    return dict(enumerate(values))


def test_counts_and_tests_by_hand(write: Write) -> None:
    a = write("a", ems((30, 1), (4, 1), (16, 0), (10, 0)))
    b = write("b", ems((30, 1), (4, 0), (16, 1), (10, 0)))
    found = compare(a, b)
    em = found.changes["EM"]
    assert (em.n, em.a, em.b) == (60, pytest.approx(34 / 60), pytest.approx(46 / 60))
    assert em.difference.mean == pytest.approx(12 / 60)
    assert em.difference.low > 0 and em.difference.p < 0.05
    m = found.mcnemar
    assert m is not None and (m.both, m.only_a, m.only_b, m.neither) == (30, 4, 16, 10)
    assert m.p == pytest.approx(2 * sum((1, 20, 190, 1140, 4845)) / 2**20)
    assert [f.key for f in found.lost] == [f"made/q{i}" for i in range(30, 34)]
    assert [f.key for f in found.won] == [f"made/q{i}" for i in range(34, 50)]
    assert (found.won[0].answer_a, found.won[0].answer_b) == ("a says", "City")
    assert found.settings == {"model": ("a", "b")}
    assert {k: c.n for k, c in found.by["hops"].items()} == {"1": 30, "2": 30}


def test_the_other_way_round(write: Write) -> None:
    a, b = write("a", ems((6, 1), (4, 0))), write("b", ems((8, 1), (2, 0)))
    one, two = compare(a, b), compare(b, a)
    assert [f.key for f in one.won] == [f.key for f in two.lost]
    assert one.changes["EM"].difference.mean == -two.changes["EM"].difference.mean
    assert one.mcnemar.p == two.mcnemar.p == 0.5  # type: ignore[union-attr]


def test_a_run_against_itself(write: Write) -> None:
    a = write("a", ems((5, 1), (5, 0)))
    found = compare(a, a)
    assert found.won == found.lost == [] and found.settings == {} and found.mcnemar.p == 1.0  # type: ignore[union-attr]
    assert all(c.difference.mean == 0 and c.difference.p == 1.0 for c in found.changes.values())


def test_only_questions_that_both_finished(write: Write) -> None:
    values = ems((100, 1))
    a = write("a", {**values, 7: None})
    b = write("b", {i: em for i, em in values.items() if i != 50})
    found = compare(a, b)
    assert found.n == 98 and any("98 questions that both finished" in w for w in found.warnings)


def test_numbers_that_one_side_lacks_are_left_out(write: Write) -> None:
    a, b = write("a", ems((4, 1)), tokens=None), write("b", ems((4, 1)))
    assert "tokens" not in compare(a, b).changes and "tokens" in compare(b, b).changes


def test_samples_have_no_mcnemar(write: Write) -> None:
    a, b = write("a", ems((4, 1)), samples=2), write("b", ems((4, 0)))
    found = compare(a, b)
    assert found.mcnemar is None and found.n == 4 and len(found.lost) == 4


def test_what_cannot_be_compared(write: Write, tmp_path: Path) -> None:
    a = write("a", ems((4, 1)))
    other = write("b", {i: 1.0 for i in range(100, 104)})
    with pytest.raises(UserError, match="no question in common"):
        compare(a, other)
    with pytest.raises(UserError, match="has not finished"):
        compare(a, tmp_path / "nothing")
    different = write("c", ems((4, 1)), rows_sha256="cd" * 32)
    assert any("different files of rows" in w for w in compare(a, different).warnings)


def test_all_forms(write: Write, tmp_path: Path, capsys: Any) -> None:
    a, b = write("a", ems((6, 1), (6, 0))), write("b", ems((5, 1), (1, 0), (6, 1)))
    sheet = compare_sheet(compare(a, b))
    text = io.StringIO()
    print_sheet(sheet, Console(file=text, width=80), max_items=2)
    for form in (text.getvalue(), markdown(sheet), sheet_page(sheet)):
        assert "+0.417" in form and "Questions won: 6" in form and "0.125" in form  # McNemar of 6 and 1
    assert "… and 4 more" in text.getvalue()
    assert main(["compare", str(a), str(b), "--out", str(tmp_path / "out"), "--show", "1"]) == 0
    assert "EM 0.500 → 0.917" in capsys.readouterr().out
    stored = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert len(stored["won"]) == 6 and stored["mcnemar"]["only_a"] == 1


def test_no_change_is_not_called_one(write: Write) -> None:
    a, b = write("a", ems((6, 1), (6, 0))), write("b", ems((5, 1), (1, 0), (2, 1), (4, 0)))
    assert "no difference is shown" in compare_sheet(compare(a, b)).headline
