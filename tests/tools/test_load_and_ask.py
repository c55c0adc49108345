"""`scout tools`: the mix, the arithmetic of samples, the chart; `ask` against a running server."""

from __future__ import annotations

import json
import re
import statistics
from xml.etree import ElementTree

import pytest
from tool_helpers import scout

from scout_protocol.errors import UserError
from scout_tools.load.chart import page
from scout_tools.load.mix import Mix, plan
from scout_tools.load.questions import made_up, read
from scout_tools.load.samples import Sample, outcome, summarise


def queries(rollout):
    return [turn.action.split("<search>")[1][:-9] for turn in rollout if "<search>" in turn.action]


def test_the_mix_is_what_it_says():
    mix = Mix(group=8, turns=(2, 4), think_s=0.5, repeat=0.7)
    rollouts = plan(made_up(50), 800, mix, seed=3)
    assert rollouts == plan(made_up(50), 800, mix, seed=3) != plan(made_up(50), 800, mix, seed=4)
    assert {len(queries(r)) for r in rollouts} == {2, 3, 4}
    assert all("<answer>" in r[-1].action for r in rollouts)
    pauses = [turn.think_s for r in rollouts for turn in r]
    assert statistics.mean(pauses) == pytest.approx(0.5, rel=0.1)
    # within a group most first searches are the group's usual one, across groups they differ
    usual = [statistics.multimode([queries(r)[0] for r in rollouts[g : g + 8]])[0] for g in range(0, 800, 8)]
    same = [queries(r)[0] == usual[i // 8] for i, r in enumerate(rollouts)]
    assert 0.6 < statistics.mean(same) < 1.0 and len(set(usual)) > 30


def test_summary_arithmetic():
    samples = [Sample(i * 0.1, (i + 1) / 1000, "ok" if i else "http_503", "rendered") for i in range(100)]
    found = summarise(samples)
    assert found.n == 100 and found.mean_ms == pytest.approx(50.5)
    assert (found.p50_ms, found.p95_ms, found.p99_ms) == pytest.approx((51, 96, 100))
    assert found.wall_s == pytest.approx(9.9 + 0.1) and found.per_second == pytest.approx(10)
    assert found.outcomes == {"ok": 99, "http_503": 1} and found.caches == {"rendered": 100}


@pytest.mark.parametrize("n", [1, 2, 500])
def test_the_chart_draws_every_size(n):
    samples = [Sample(i * 0.01, 0.001 + i % 7 / 1000, "ok") for i in range(n)]
    text = page("a <title>", summarise(samples), samples)
    assert "a &lt;title&gt;" in text and "nan" not in text
    drawings = re.findall(r"<svg.*?</svg>", text)
    assert len(drawings) == 3
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        for line in root.iter("polyline"):
            points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
            assert points and all(0 <= x <= 860 and 0 <= y <= 240 for x, y in points)


def test_questions_of_every_kind(tmp_path):
    path = tmp_path / "q"
    path.write_text('{"question": "one?"}\n{"question_text": "two?"}\n\nthree?\n')
    assert read(path) == ["one?", "two?", "three?"]
    path.write_text("\n")
    with pytest.raises(UserError):
        read(path)
    path.write_text("{broken\n")
    with pytest.raises(UserError, match=r"q:1"):
        read(path)
    assert all(8 <= len(question.split()) <= 15 for question in made_up(300))


def test_ask(server):
    done = scout("tools", "ask", "who designed the analytical engine?", "--url", server.url)
    assert done.returncode == 0, done.stderr
    assert "Doc 1(Title: Charles Babbage)" in done.stdout
    assert re.search(r"valid true · cache (miss|rendered) · [\d.]+ ms, [\d.]+ ms in the server", done.stdout)
    raw = scout("tools", "ask", "engine", "--url", server.url, "--raw")
    assert raw.stdout.startswith('"\\n\\n<information>Doc 1')
    empty = scout("tools", "ask", " ", "--url", server.url)
    assert empty.returncode == 1 and "invalid_reason: empty_query" in empty.stdout


def test_ask_where_nobody_listens():
    done = scout("tools", "ask", "x", "--url", "http://127.0.0.1:9")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "scout serve" in done.stderr
    done = scout("tools", "ask", "x", "--url", "nonsense")
    assert done.returncode == 2 and "--url" in done.stderr


@pytest.mark.parametrize(
    ("status", "observation", "expected"),
    [
        (200, "text", "ok"),
        (200, {"obs": "hint", "invalid_reason": "no_closing_tag"}, "malformed"),
        (200, {"obs": "", "infra_error": 1.0, "error_kind": "timeout"}, "infra:timeout"),
        (503, "text", "http_503"),
        (302, "text", "http_302"),
    ],
)
def test_outcomes(status, observation, expected):
    reply = {"observations": [observation], "dones": [False], "valids": [True], "processing_time_ms": 1.0}
    assert outcome(status, json.dumps(reply).encode()) == expected


def test_an_answer_that_is_none_is_lost():
    assert outcome(200, b"<html>") == "lost:DecodeError"
    assert outcome(200, b'{"observations": []}') == "lost:ValidationError"
    empty = b'{"observations": [], "dones": [], "valids": [], "processing_time_ms": 0}'
    assert outcome(200, empty) == "lost:IndexError"
