"""Cards of real evaluations: numbers, controls, ceiling, fingerprint, all four forms, and refusals."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from scout_eval.card import Card, fingerprint, fingerprint_id, load_card
from scout_eval.card_sheet import card_sheet
from scout_eval.cli import main
from scout_eval.run import EvalConfig, run_eval
from scout_eval.sheet_html import sheet_page
from scout_eval.sheet_text import markdown, print_sheet
from scout_eval.summary import read_summary, write_json
from scout_protocol.errors import UserError

QUIET = Console(file=io.StringIO())
HOSTILE = "<script>alert(1)</script><img src=x onerror=y>|*_[a](http://b)`\x1b[31m\u202e"


@pytest.fixture
def evaluated(server: Any, rows_file: Any, tmp_path: Path) -> Path:
    """The oracle on 40 rows, with two of the three controls."""
    rows, folder = rows_file(40), tmp_path / "eval" / "oracle"
    for control in ("none", "blank", "random"):
        out = folder if control == "none" else folder.with_name(f"oracle.{control}")
        run_eval(EvalConfig(rows, "oracle", server.url, out, stage="oracle", control=control), QUIET)
    return folder


def terminal(card: Card, width: int = 80) -> str:
    text = io.StringIO()
    print_sheet(card_sheet(card), Console(file=text, width=width))
    return text.getvalue()


def test_the_numbers_of_a_card(evaluated: Path, server: Any) -> None:
    card = load_card(evaluated, server.url)
    assert card.metrics.overall.em.mean == 0.8 and card.metrics.overall.closed_book == 0.0
    assert set(card.controls) == {"blank", "random"}
    assert card.controls["blank"].em.mean == 0.0 and card.controls["blank"].still_right == 0.0
    reached = card.ceiling
    assert reached is not None and reached.overall.answer_by_plan is not None
    assert reached.overall.answer_by_plan.mean == 0.8
    assert (reached.n_within, reached.n_beyond) == (32, 8)
    assert reached.em_within.mean == 1.0 and reached.em_beyond.mean == 0.0  # type: ignore[union-attr]
    assert card.fingerprint["corpus and index"] == "made:1" and card.fingerprint["top-k"] == "1"
    again = load_card(evaluated)  # the ceiling was stored
    assert again.ceiling == reached


def test_every_form_says_the_same(evaluated: Path, server: Any) -> None:
    card = load_card(evaluated, server.url)
    sheet = card_sheet(card)
    for text in (terminal(card, 140), markdown(sheet), sheet_page(sheet)):
        for wanted in (
            "0.800",
            card.fingerprint_id,
            "shuffled: not run",
            "made:1",
            "closed",
            "hops 2",
            "answer 40",
        ):
            assert wanted.lower() in text.lower().replace("\\", ""), wanted


def test_the_terminal_fits_eighty_columns(evaluated: Path, server: Any) -> None:
    text = terminal(load_card(evaluated, server.url))
    for head in ("EM    folded EM", "answered  reward  turns  searches", "by plan: answer"):
        assert head in text
    assert "…" not in text


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_alone_and_inert(evaluated: Path, server: Any) -> None:
    parsed = Page(text := sheet_page(card_sheet(load_card(evaluated, server.url))))
    assert not {tag for tag, _ in parsed.tags} & {"script", "link", "img", "iframe", "object"}
    assert not [a for _, a in parsed.tags if {"src", "href"} & a.keys()]
    assert "default-src 'none'" in text and "prefers-color-scheme: dark" in text


def test_hostile_words_stay_words(evaluated: Path) -> None:
    summary = read_summary(evaluated)
    summary.model = HOSTILE
    summary.identity.retriever["fingerprint"] = HOSTILE
    write_json(evaluated / "summary.json", summary)
    sheet = card_sheet(load_card(evaluated))
    parsed = Page(sheet_page(sheet))
    assert not {tag for tag, _ in parsed.tags} & {"script", "img"}
    assert "\x1b" not in parsed.text and "\u202e" not in parsed.text and "<script>" in parsed.text
    marked = markdown(sheet)
    assert "\\<script\\>" in marked and "<script>" not in marked and "[a](http" not in marked
    assert "\x1b" not in marked and "\u202e" not in marked
    text = io.StringIO()
    print_sheet(sheet, Console(file=text, width=100, force_terminal=False))
    assert "\x1b[31m" not in text.getvalue() and "<script>" in text.getvalue()


def test_more_than_two_percent_outages_is_no_card(evaluated: Path, capsys: Any) -> None:
    path = evaluated / "traces.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    trace = json.loads(lines[0])
    trace["stop_reason"], trace["score"] = "infra_error", {}
    path.write_bytes(json.dumps(trace).encode() + b"\n" + b"".join(lines[1:]))
    with pytest.raises(UserError, match=r"infra errors: 1 of 40 trajectories \(2.5%, allowed 2%\)"):
        main(["card", str(evaluated)])
    assert not list(evaluated.glob("card.*"))
    # the same from a shell: one line, exit status 2
    code = "import sys; from scout_cli.main import main; sys.exit(main(sys.argv[1:]))"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code, "eval", "card", str(evaluated)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_what_is_not_finished_has_no_card(evaluated: Path) -> None:
    (evaluated / "summary.json").unlink()
    with pytest.raises(UserError, match="has not finished"):
        load_card(evaluated)


def test_a_control_that_ran_otherwise_is_called_out(evaluated: Path, server: Any, rows_file: Any) -> None:
    out = evaluated.with_name("oracle.shuffled")
    run_eval(
        EvalConfig(rows_file(40), "oracle", server.url, out, stage="x", control="shuffled", seed=9), QUIET
    )
    assert [w for w in load_card(evaluated).warnings if "Control shuffled ran with another seed" in w]


def test_the_fingerprint_changes_with_everything_that_matters(evaluated: Path) -> None:
    summary = read_summary(evaluated)
    ids = {fingerprint_id(fingerprint(summary))}
    changes: list[dict[str, Any]] = [
        {"policy": "hf:x#1"}, {"rows_sha256": "1" * 64}, {"prompt_sha256": "2" * 64}, {"seed": 5},
        {"temperature": 0.7}, {"samples": 4}, {"batch_size": 3}, {"control": "blank"},
        {"settings": {**summary.identity.settings, "max_turns": 9}},
        {"retriever": {**summary.identity.retriever, "topk": 5}},
        {"retriever": {**summary.identity.retriever, "fingerprint": "made:2"}},
        {"retriever": {**summary.identity.retriever, "backend": "other"}},
    ]  # fmt: skip
    for change in changes:
        other = msgspec.structs.replace(summary, identity=msgspec.structs.replace(summary.identity, **change))
        ids.add(fingerprint_id(fingerprint(other)))
    ids.add(fingerprint_id(fingerprint(msgspec.structs.replace(summary, commit="other"))))
    assert len(ids) == len(changes) + 2
    later = msgspec.structs.replace(summary, wall_s=99.0, tools="http://elsewhere", finished_at="later")
    assert fingerprint_id(fingerprint(later)) in ids  # where and when it ran is no condition


def test_the_command_writes_three_files(evaluated: Path, server: Any, tmp_path: Path, capsys: Any) -> None:
    assert main(["card", str(evaluated), "--tools", server.url, "--out", str(tmp_path / "cards")]) == 0
    out = capsys.readouterr().out
    assert "Evaluation card: oracle" in out and re.search(r"EM 0\.800 \[0\.\d{3}, 0\.\d{3}\] on 40", out)
    assert sorted(p.name for p in (tmp_path / "cards").iterdir()) == ["card.html", "card.json", "card.md"]
    read = msgspec.json.decode((tmp_path / "cards" / "card.json").read_bytes(), type=Card)
    assert read.metrics.overall.em.mean == 0.8 and read.ceiling is not None


def test_rows_that_moved(evaluated: Path, server: Any, rows_file: Any, tmp_path: Path) -> None:
    moved = tmp_path / "moved.parquet"
    (tmp_path / "rows.parquet").rename(moved)
    with pytest.raises(UserError, match="no such file"):
        load_card(evaluated, server.url)
    assert load_card(evaluated, server.url, moved).ceiling is not None
    with pytest.raises(UserError, match="not the file that was evaluated"):
        load_card(evaluated, server.url, rows_file(39))


def test_a_card_of_an_older_evaluation(evaluated: Path) -> None:
    """Folders of the version before cards lack retriever, samples and the newer numbers."""
    path = evaluated / "summary.json"
    summary = json.loads(path.read_bytes())
    for name in ("retriever", "samples", "batch_size"):
        del summary["identity"][name]
    for name in ("tool", "samples"):
        del summary["metrics"][name]
    path.write_text(json.dumps(summary))
    card = load_card(evaluated)
    assert card.metrics.tool is not None and card.metrics.overall.cover_em is not None
    assert card.fingerprint["top-k"] == "not told by the server"
