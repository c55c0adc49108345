"""Recall of supporting titles on real HotpotQA paragraphs, and its arithmetic on made-up ones."""

from __future__ import annotations

import json
import re

import pytest
from tool_helpers import scout, start_server, stop_server, write_jsonl

from scout_protocol.errors import UserError
from scout_tools.backends.bm25 import BM25Backend
from scout_tools.index import build_index
from scout_tools.index_eval import evaluate, read_questions


def test_arithmetic(tmp_path):
    rows = [{"id": str(i), "title": f"T{i}", "text": f"only{i} " * (10 - i) + "common"} for i in range(8)]
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    asked = [
        {"question": "only1 only2", "supporting_facts": [["T1", 0], ["T2", 0], ["T1", 1]]},
        {"question": "only3", "supporting_facts": [["T3", 0], ["Nowhere", 0]]},
    ]
    questions = read_questions(write_jsonl(tmp_path / "q.jsonl", asked))
    quality = evaluate(BM25Backend(tmp_path / "index"), questions)
    # first question: one of two at 1, both at 3; second: one of two throughout
    assert quality.recall == {1: 0.5, 3: 0.75, 5: 0.75, 10: 0.75}
    assert quality.all_at_10 == 0.5 and quality.n_questions == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "holds no question"),
        ('{"question": "q"}\n', ":1: lacks 'supporting_facts'"),
        ('{"question": " ", "supporting_facts": [["a", 0]]}\n', "empty question"),
        ('\n{"question"\n', "q.jsonl:2"),
    ],
)
def test_bad_questions(tmp_path, content, words):
    path = tmp_path / "q.jsonl"
    path.write_text(content)
    with pytest.raises(UserError) as caught:
        read_questions(path)
    assert words in str(caught.value)


@pytest.mark.shared_data
def test_real_hotpot(hotpot_dev, tmp_path):
    index = tmp_path / "index"
    built = scout("index", "build", hotpot_dev, "--index", index)
    assert built.returncode == 0 and "4858 passages, 73 duplicates dropped" in built.stdout
    done = scout("index", "eval", "--index", index, "--questions", hotpot_dev)
    assert done.returncode == 0, done.stderr
    recall_3 = float(re.search(r"recall@3 .* ([\d.]+)", done.stdout)[1])
    both = float(re.search(r"all titles in top 10 .* ([\d.]+)", done.stdout)[1])
    assert recall_3 >= 0.64 and both >= 0.70

    # every real question, tags and quotes and all, through the running server
    rows = [json.loads(line) for line in hotpot_dev.read_text(encoding="utf-8").splitlines()]
    server = start_server("--index", index, "--topk", 10)
    try:
        found = 0
        for start in range(0, len(rows), 100):
            part = rows[start : start + 100]
            reply = server.act(*(f"<search>{row['question_text']}</search>" for row in part))
            assert all(reply["valids"])
            for row, shown in zip(part, reply["observations"], strict=True):
                gold = {c["title"] for c in row["contexts"] if c["is_supporting"]}
                found += all(f"(Title: {title})" in shown for title in gold)
        assert found / len(rows) == pytest.approx(both, abs=0.002)
    finally:
        stop_server(server)
