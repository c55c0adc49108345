"""What is kept ready, and what a query does without."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tool_helpers import scout, write_jsonl

from scout_tools.backends.bm25 import BM25Backend
from scout_tools.index import build_index
from scout_tools.rendered import Rendered, normalise
from scout_tools.stopwords import STOP_WORDS, search_terms


def test_the_least_recently_used_goes_first():
    kept = Rendered(40_000)
    for number in range(12):
        kept.put(f"key{number}", b"x" * 4000)
        kept.get("key0")
    assert kept.get("key0") is not None and kept.get("key11") is not None
    assert kept.get("key1") is None and kept.n_bytes <= 40_000


def test_bytes_are_counted_right_whatever_happens():
    kept = Rendered(3000)
    for number in range(500):
        kept.put(f"k{number % 7}", b"x" * (number * 37 % 400))
    assert kept.n_bytes == sum(len(k) + len(kept.get(k) or b"") + 250 for k in list(kept._kept))
    kept.put("giant", b"x" * 2900)
    assert kept.get("giant") is None and len(kept) > 1  # it would have pushed out everybody


def test_nothing_is_kept_past_its_time_or_without_room():
    kept = Rendered(10_000, keep_s=1e-9)
    kept.put("a", b"1")
    assert kept.get("a") is None and len(kept) == 0 and kept.n_bytes == 0
    for nothing in (Rendered(0), Rendered(10_000, keep_s=0.0)):
        nothing.put("a", b"1")
        assert nothing.get("a") is None


@given(st.text(max_size=60))
def test_queries_with_one_key_have_the_same_terms(query):
    """The key may join only what the analyzer cannot tell apart."""
    from scout_tools.analyzer import make_analyzer

    analyze = make_analyzer().analyze
    assert analyze(normalise(query)) == analyze(query)
    assert normalise(normalise(query)) == normalise(query)


def test_a_hit_is_the_same_answer(server):
    action = "<search>who wrote the first program?</search>"
    body = json.dumps({"trajectory_ids": ["t"], "actions": [action]}).encode()
    seen = [server.request("POST", "/get_observation", body) for _ in range(12)]
    observations = {json.dumps(json.loads(raw)["observations"]) for _, _, raw in seen}
    levels = [headers["x-cache"] for _, headers, _ in seen]
    assert len(observations) == 1 and levels.count("rendered") >= 10  # at most one miss per worker
    assert server.act("<answer>x</answer>")["valids"] == [True]
    _, headers, _ = server.request("POST", "/get_observation", body.replace(b"search>", b"answer>"))
    assert "x-cache" not in headers


def test_stop_words_are_left_out_unless_nothing_else_is_left():
    assert search_terms(["who", "designed", "the", "engine", "engine"], STOP_WORDS, 10) == [
        "designed",
        "engine",
    ]
    assert search_terms(["who", "is", "it"], STOP_WORDS, 10) == ["who", "is", "it"]
    assert search_terms(["a", "b", "c"], (), 2) == ["a", "b"]
    assert search_terms([], STOP_WORDS, 5) == []
    # words that carry titles stay
    assert not {"her", "not", "two", "up", "first", "no", "you", "me"} & STOP_WORDS


def test_a_title_of_stop_words_is_found(tmp_path):
    rows = [
        {"id": "1", "title": "Who Is It", "text": "a song"},
        {"id": "2", "title": "Other", "text": "the song that is about some other thing"},
    ]
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    backend = BM25Backend(tmp_path / "index")
    assert [d.id for d in backend.search_now(["Who is it?"], 1)[0]] == ["1"]
    # a stop word beside another word changes nothing
    assert backend.search_now(["the song"], 2) == backend.search_now(["song"], 2)
    assert BM25Backend(tmp_path / "index", stop_words=()).fingerprint != backend.fingerprint


@pytest.mark.shared_data
def test_recall_is_no_lower_for_it(hotpot_dev, tmp_path):
    assert scout("index", "build", hotpot_dev, "--index", tmp_path / "index").returncode == 0
    recall = []
    for options in ([], ["--keep-stop-words"]):
        done = scout("index", "eval", "--index", tmp_path / "index", "--questions", hotpot_dev, *options)
        lines = [line for line in done.stdout.splitlines() if line.startswith("recall")]
        recall.append([float(line.split()[-1]) for line in lines])
    (at_1, at_3, at_5, at_10), every_word = recall
    assert at_3 >= 0.671 and all(ours >= theirs for ours, theirs in zip(recall[0], every_word, strict=True))
    assert at_1 < at_3 < at_5 < at_10
