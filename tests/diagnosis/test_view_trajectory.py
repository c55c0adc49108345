"""What a trajectory looks like: colours by author, nothing from a file that acts on the terminal."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scout_diagnosis import view_cli

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
SGR = re.compile(r"\x1b\[([0-9;]*)m")


@pytest.fixture(autouse=True)
def colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.delenv("NO_COLOR", raising=False)


def cells(output: str) -> list[tuple[str, frozenset[str]]]:
    """Every printed character with the SGR codes in force: a terminal of our own, for colours alone."""
    found, style, at = list[tuple[str, frozenset[str]]](), frozenset[str](), 0
    while at < len(output):
        if match := SGR.match(output, at):
            codes = match.group(1).split(";")
            style = frozenset() if codes in (["0"], [""]) else style | set(codes)
            at = match.end()
        else:
            found.append((output[at], style))
            at += 1
    return found


def letters(output: str) -> str:
    return SGR.sub("", output)


def test_each_author_has_a_colour_of_its_own(
    trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    # Letters that no label of the viewer uses; long enough to wrap.
    spans = [
        {"author": "prompt", "text": "Ж" * 100},
        {"author": "policy", "text": "\n" + "Я" * 100 + "\n"},
        {"author": "tool", "text": "\n\n" + "Щ " * 100},
        {"author": "policy", "text": "Я"},
    ]
    assert view_cli.main([str(write([trace(spans=spans)]))]) == 0
    seen = cells(capsys.readouterr().out)
    styles = {char: {style for c, style in seen if c == char} for char in "ЖЯЩ"}
    count = {char: sum(c == char for c, _ in seen) for char in "ЖЯЩ"}
    assert count == {"Ж": 100, "Я": 101, "Щ": 100}
    assert all(len(of_author) == 1 for of_author in styles.values()), styles
    prompt, policy, tool = (next(iter(styles[char])) for char in "ЖЯЩ")
    assert "2" in prompt  # SGR 2 is faint
    assert "2" not in policy | tool
    assert len({prompt, policy, tool}) == 3


def test_no_text_of_a_file_acts_on_the_terminal(
    trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    acts = (
        "\x1b[2J\x1b]0;owned\x07\x1b]8;;http://evil\x1b\\x\x9b31m\r\x08\x7f\x00\x0b\x0c\x85\u2028\u202e\u2066"
        "\u200b\ufeff\U000e0041[red]r[/red][link=http://evil]l[/] :smile: \\[b]"
    )
    call = {
        "query": acts,
        "latency_s": 1.0,
        "valid": False,
        "infra_error": True,
        "error_kind": acts,
        "cache": acts,
    }
    hostile = trace(
        question_id=acts,
        data_source=acts,
        question=acts,
        golden_answers=[acts],
        spans=[{"author": author, "text": acts} for author in ("prompt", "policy", "tool")],
        tool_calls=[call, call],
        score={acts: acts, "list": [acts]},
        model=acts,
        stage=acts,
        extra={acts: {acts: acts}, "policy_error": acts, "control": acts},
    )  # fmt: skip
    path = write([hostile])
    assert view_cli.main([str(path)]) == 0
    out = letters(capsys.readouterr().out)
    assert view_cli.main([str(path), "--stage", "no such stage"]) == 0  # names the stages that there are
    out += letters(capsys.readouterr().out)
    acting = {c for c in out if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")} - {"\n"}
    assert not acting
    flat = "".join(line.removeprefix("▌ ") for line in out.splitlines())
    for shown in (
        "\\x1b[2J",
        "\\x07",
        "\\x9b31m",
        "\\u202e",
        "\\U000e0041",
        "[red]r[/red]",
        ":smile:",
        "\\[b]",
    ):
        assert flat.count(shown) >= 15, shown


def test_what_is_not_hidden_is_printed_as_it_is(
    trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "naïve “quotes” 東京 🙂 می\u200cخواهم (a|b) ½"
    view_cli.main([str(write([trace(spans=[{"author": "tool", "text": text}])]))])
    assert f"▌ {text}\n" in letters(capsys.readouterr().out)


def test_facts_of_a_right_answer(trace: Make, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write([trace(), trace(extra={"group": "g7", "turns": [{}]})])
    view_cli.main([str(path)])
    first, second = letters(capsys.readouterr().out).split("\n2 · ")
    lines = first.splitlines()
    assert lines[0] == "written by:  ▌prompt  ▌policy  ▌tool"
    assert lines[1].startswith("1 · ✓ right · grpo step 1 · stopped by answer ─")
    assert lines[2:] == [
        "question  Who founded Ambleforth?",
        "gold      Ida Quill",
        "▌prompt · 3 tokens",
        "▌ PROMPT",
        "▌policy · 2 tokens",
        "▌ <search> Ambleforth </search>",
        '  → tool call "Ambleforth" · 12 ms',
        "▌tool · 1 tokens",
        "▌ ↵↵<information>PAGE</information>↵↵",
        "▌policy · 2 tokens",
        "▌ <answer> Ida Quill </answer>",
        "score     total 1 · em 1 · f1 1 · format 1",
        "tokens    policy 4 · tool 1",
        "turns     2 · searches 1 · 1.5 s",
        "id        q · made-up",
        "model     m",
        f"in        {path}:1",
    ]
    assert "extra     group g7\n" in second
    assert f"in        {path}:2\n" in second


def test_an_outage_is_told_where_it_happened(
    trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = [
        {"query": "", "latency_s": 0.5, "valid": False},
        {"query": "a", "latency_s": 30.0, "valid": False, "infra_error": True, "error_kind": "timeout"},
    ]
    spans = [
        {"author": "policy", "text": "one"},
        {"author": "tool", "text": "no"},
        {"author": "policy", "text": "two"},
    ]
    out_of_luck = trace(
        spans=spans, tool_calls=calls, score={}, stop_reason="infra_error", n_policy_tokens=None,
        extra={"policy_error": "connection refused"},
    )  # fmt: skip
    view_cli.main([str(write([out_of_luck]))])
    out = letters(capsys.readouterr().out)
    assert "1 · ! outage · grpo step 1 · stopped by infra_error" in out
    one, refused, no, two, outage, score = (
        out.index(text)
        for text in (
            "▌ one\n",
            "  → tool call without a query · 500 ms · refused\n",
            "▌ no\n",
            "▌ two\n",
            '  → tool call "a" · 30 s · outage: timeout\n',
            "score     none: not scored\n",
        )
    )
    assert one < refused < no < two < outage < score
    assert "tokens    policy unknown · tool 1\n" in out
    assert "outage    policy: connection refused\n" in out


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"score": {"em": 0.0, "total": 0.1}}, "✗ wrong"),
        ({"score": {"em": 0.0}, "stop_reason": "length"}, "✗ no answer"),
        ({"score": {}}, "? not scored"),
        ({"score": {"total": 0.5}}, "? not scored"),
    ],
)
def test_verdicts(
    changes: dict[str, Any], verdict: str, trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    view_cli.main([str(write([trace(**changes)]))])
    assert f"\n1 · {verdict} · " in letters(capsys.readouterr().out)


def test_a_huge_span_is_cut_and_says_so(
    trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write([trace(spans=[{"author": "policy", "text": "Я" * 25_000}])])
    view_cli.main([str(path)])
    out = letters(capsys.readouterr().out)
    assert out.count("Я") == 20_000
    flat = " ".join(line.removeprefix("▌ ") for line in out.splitlines())
    assert "5,000 more characters in" in flat
