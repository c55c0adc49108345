"""The report as a reader's parser sees it: its numbers, who wrote what, nothing from outside or invented."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from scout_eval.report_cli import main
from scout_eval.report_curves import PANELS
from scout_eval.report_data import load_run
from scout_eval.report_html import page
from scout_eval.report_picks import pick_trajectories
from scout_eval.report_terminal import print_report
from scout_eval.summary import Summary, write_json
from scout_protocol.errors import UserError
from scout_protocol.records import Trace

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\"'\u202e\x00 北京"
VOID = {"meta", "br", "img"}


class Page(HTMLParser):
    """Elements with their classes and text, and a check that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.stack: list[str] = []
        self.feed(text)
        self.close()
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(f"{tag}.{dict(attrs).get('class') or ''}")

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop().split(".")[0] == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.stack), data))

    def inside(self, *classes: str) -> list[str]:
        return [text for stack, text in self.texts if all(any(c == s for s in stack) for c in classes)]

    def rows(self) -> list[list[str]]:
        """The cells of the stage table, intervals joined to their means."""
        found: list[list[str]] = []
        for stack, text in self.texts:
            if not any(s.startswith(("td.", "th.")) for s in stack):
                continue
            if stack[-1].startswith("th.") or any(s.startswith("details.") for s in stack):
                continue
            if text in ("before SFT", "after SFT", "after GRPO", "after DAPO"):
                found.append([])
            if found:
                found[-1].append(text)
        return found


def write_metrics(run: Path, name: str, lines: list[Any]) -> None:
    (run / name).mkdir(parents=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (run / name / "metrics.jsonl").write_text(text)


@pytest.fixture
def whole_run(tmp_path: Path, write_eval: Callable[..., list[Trace]]) -> Path:
    run = tmp_path / "whole"
    write_eval(run, "base", [0.0] * 10)
    write_eval(run, "sft", [1.0] * 4 + [0.0] * 6)
    write_eval(run, "grpo", [1.0] * 6 + [0.0] * 4)
    write_eval(run, "dapo", [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0], n_searches=2)
    for stage in ("base", "sft", "grpo", "dapo"):
        for control in ("blank", "shuffled"):
            write_eval(run, f"{stage}.{control}", [0.0] * 10)
    keys = [key for _, key in PANELS]
    steps = [{"step": s, **{k: 0.01 * s + i for i, k in enumerate(keys)}} for s in range(1, 13)]
    for name in ("grpo", "dapo"):
        write_metrics(run, name, list(steps))
    (run / "stages.json").write_text(json.dumps({"sft": {"wall_s": 75.0, "cpu_s": 70.5, "done_at": "x"}}))
    return run


def render(run: Path, note: str = "") -> tuple[str, Page]:
    data = load_run(run)
    text = page(data, pick_trajectories(data), note)
    return text, Page(text)


def test_the_table_holds_the_numbers_of_the_summaries(whole_run: Path) -> None:
    _, parsed = render(whole_run)
    rows = {row[0]: row for row in parsed.rows()}
    assert list(rows) == ["before SFT", "after SFT", "after GRPO", "after DAPO"]
    dapo = rows["after DAPO"]
    # n; EM, 1 hop (rows 0, 2, …), 2 hops and F1, each with its interval; answered, turns, searches, controls
    assert dapo[1:2] + dapo[2:10:2] == ["10", "0.800", "1.000", "0.600", "0.800"]
    assert dapo[5] == "1.000–1.000" and dapo[10:13] == ["100%", "3.00", "2.00"]
    assert dapo[13::2] == ["0.000", "0.000"]
    low, high = map(float, dapo[3].split("–"))
    assert 0.4 <= low < 0.8 < high <= 1.0


def test_hops_and_controls_are_columns(whole_run: Path) -> None:
    text, _ = render(whole_run)
    for column in ("EM 1 hop", "EM 2 hops", "EM blank", "EM shuffled"):
        assert f"<th>{column}</th>" in text


def test_one_file_that_asks_nobody_for_anything(whole_run: Path) -> None:
    text, parsed = render(whole_run)
    tags = {tag for tag, _ in parsed.elements}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "form", "base", "a"}
    for _, attributes in parsed.elements:
        assert not set(attributes) & {"src", "href", "srcset", "data", "action", "xlink:href"}
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in text and "@import" not in text and "http://www" not in text
    policy = next(a["content"] for t, a in parsed.elements if t == "meta" and "http-equiv" in a)
    assert policy and policy.startswith("default-src 'none'")
    assert "prefers-color-scheme: dark" in text


def test_spans_are_marked_by_their_author(whole_run: Path) -> None:
    text, parsed = render(whole_run)
    assert sum(tag == "article" for tag, _ in parsed.elements) == 6
    assert all("Question:" in t for t in parsed.inside("div.span prompt", "pre."))
    assert all(t.startswith(("<search>", "<answer>")) for t in parsed.inside("div.span policy", "pre."))
    assert all(t.startswith("<information>") for t in parsed.inside("div.span tool", "pre."))
    assert len(parsed.inside("div.span tool", "pre.")) > 5
    assert "reward: total <b>1</b> · em <b>1</b>" in text


def test_hostile_text_stays_text(tmp_path: Path, write_eval: Callable[..., list[Trace]]) -> None:
    run = tmp_path / "run"
    fields = ("question", "question_id", "observation", "model")
    write_eval(run, "sft", [0.0, 1.0], golden_answers=[HOSTILE], **dict.fromkeys(fields, HOSTILE))
    (run / "stages.json").write_text(
        json.dumps({HOSTILE: {"wall_s": 1.0, "cpu_s": None, "done_at": HOSTILE}})
    )
    path = run / "eval" / "sft" / "summary.json"
    summary = msgspec.json.decode(path.read_bytes(), type=Summary)
    summary.model = summary.commit = summary.rows = HOSTILE
    summary.versions = {HOSTILE: HOSTILE}
    write_json(path, summary)
    text, parsed = render(run, note=HOSTILE)
    assert not {tag for tag, _ in parsed.elements} & {"script", "img"}
    assert "\x00" not in text and "\u202e" not in text
    shown = HOSTILE.replace("\u202e", "\ufffd").replace("\x00", "\ufffd")
    assert shown in "".join(parsed.inside("div.span tool", "pre."))  # and it is shown, not dropped
    assert sum(shown in t for _, t in parsed.texts) >= 8


def test_missing_pieces_are_named_not_invented(
    tmp_path: Path, write_eval: Callable[..., list[Trace]]
) -> None:
    run = tmp_path / "run"
    write_eval(run, "sft", [1.0, 0.0])
    write_metrics(run, "grpo", [{"step": 1, "scout/em": 0.5}])
    text, parsed = render(run)
    rows = {row[0]: row for row in parsed.rows()}
    assert set(rows["after DAPO"][1:]) == {"missing"} and set(rows["before SFT"][1:]) == {"missing"}
    assert rows["after SFT"][-2:] == ["missing", "missing"]  # its controls were not run
    assert text.count("missing for GRPO and DAPO") == 8 and text.count("missing for DAPO") == 1
    assert "missing: stages.json" in text
    listed = "".join(parsed.inside("div.note"))
    for name in (
        "eval/dapo/summary.json",
        "eval/sft.blank/summary.json",
        "dapo/metrics.jsonl",
        "stages.json",
    ):
        assert name in listed


def test_a_run_of_nothing_but_curves(tmp_path: Path) -> None:
    write_metrics(tmp_path, "dapo", [{"step": s, "scout/em": 0.1 * s} for s in range(3)])
    text, _ = render(tmp_path)
    assert "No evaluation has finished." in text and "no traces of an evaluation" in text


def test_a_damaged_summary_is_missing_with_its_reason(whole_run: Path) -> None:
    (whole_run / "eval" / "grpo" / "summary.json").write_text("{")
    data = load_run(whole_run)
    assert data.stages[2].summary is None
    assert [m for m in data.missing if m.startswith("eval/grpo/summary.json (unreadable")]


def test_different_rows_are_warned_of(whole_run: Path) -> None:
    path = whole_run / "eval" / "dapo" / "summary.json"
    path.write_text(path.read_text().replace("ab" * 32, "ef" * 32))
    assert any("different rows" in w for w in load_run(whole_run).warnings)


@pytest.mark.parametrize("kind", ["absent", "empty"])
def test_no_run_at_all(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    if kind == "empty":
        folder.mkdir()
    with pytest.raises(UserError, match="run"):
        main(["--run", str(folder)])
    assert not (folder / "report.html").exists()


def test_the_command_writes_the_page_and_prints_the_table(
    whole_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--run", str(whole_run)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"DAPO\s+\.800 \[", out) and re.search(r"base\s+\.000 \[", out)
    assert "wall time: sft 1 min 15 s" in out and "missing" not in out
    first = (whole_run / "report.html").read_bytes()
    assert main(["--run", str(whole_run)]) == 0
    assert (whole_run / "report.html").read_bytes() == first  # nothing of the clock or of chance in it
    assert sorted(p.name for p in whole_run.iterdir()) == [
        "dapo",
        "eval",
        "grpo",
        "report.html",
        "stages.json",
    ]


def test_a_place_that_cannot_be_written(whole_run: Path) -> None:
    with pytest.raises(UserError, match="writable"):
        main(["--run", str(whole_run), "--out", str(whole_run / "no" / "such" / "r.html")])


def test_the_terminal_table_fits_eighty_columns(whole_run: Path) -> None:
    text = io.StringIO()
    print_report(load_run(whole_run), Console(file=text, width=80))
    table = text.getvalue().split("questions;")[0]
    assert "…" not in table and "searc" in table


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom scout_eval import cli, report_cli\n"
        "for m in (cli, report_cli):\n    m.parser().format_help()\n"
        "print([m for m in ('numpy','aiohttp','pyarrow','torch','transformers','rich') if m in sys.modules])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
