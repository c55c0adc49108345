"""The ranking against BM25 written out from its formula, over every document, with no index at all."""

from __future__ import annotations

import math
import random
import re
from collections import Counter

import pytest
from tool_helpers import write_jsonl

from scout_tools.backends.bm25 import BM25Backend
from scout_tools.index import build_index

K1, B = 1.2, 0.75


def brute_force(documents: list[list[str]], query: list[str]) -> list[float]:
    """Robertson's BM25 with idf = ln(1 + (N - n + 0.5) / (n + 0.5)); each query word counts once."""
    n_documents = len(documents)
    mean_length = sum(map(len, documents)) / n_documents
    holders = Counter(term for document in documents for term in set(document))
    scores = []
    for document in documents:
        counts, total = Counter(document), 0.0
        for term in set(query):
            if term in counts:
                idf = math.log(1 + (n_documents - holders[term] + 0.5) / (holders[term] + 0.5))
                norm = K1 * (1 - B + B * len(document) / mean_length)
                total += idf * counts[term] * (K1 + 1) / (counts[term] + norm)
        scores.append(total)
    return scores


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@pytest.mark.parametrize("seed", range(5))
def test_scores_and_order(tmp_path, seed):
    rng = random.Random(seed)
    vocabulary = [f"w{i}" for i in range(80)] + ["Zürich", "東京", "naïve", "O'Brien", "x_y"]
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    # At most 40 words: tantivy stores lengths exactly up to 40 and in steps beyond.
    rows = []
    for i in range(300):
        text = ", ".join(rng.choices(vocabulary, weights, k=rng.randint(1, 36)))
        rows.append({"id": str(i), "title": rng.choice(vocabulary), "text": text})
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)], keep_duplicates=True)
    backend = BM25Backend(tmp_path / "index")
    documents = [words(f"{row['title']}\n{row['text']}") for row in rows]
    for _ in range(40):
        query = " ".join(rng.choices(vocabulary, k=rng.randint(1, 8)))
        expected = brute_force(documents, words(query))
        (hits,) = backend.search_now([query], 10)
        best = sorted((s for s in expected if s > 0), reverse=True)[:10]
        assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-5)
        for hit in hits:
            assert hit.score == pytest.approx(expected[int(hit.id)], rel=1e-5)


def test_long_documents_and_long_queries(tmp_path):
    rng = random.Random(0)
    vocabulary = [f"w{i}" for i in range(400)]
    rows = [
        {"id": str(i), "title": f"t{i}", "text": " ".join(rng.choices(vocabulary, k=rng.randint(50, 400)))}
        for i in range(100)
    ]
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    backend = BM25Backend(tmp_path / "index")
    documents = [words(f"{row['title']}\n{row['text']}") for row in rows]
    for _ in range(20):
        query = " ".join(rng.choices(vocabulary, k=12))
        expected = brute_force(documents, words(query))
        (hits,) = backend.search_now([query], 5)
        for hit in hits:  # lengths in steps of up to 1/8
            assert hit.score == pytest.approx(expected[int(hit.id)], rel=0.08)
    assert backend.search_now([" ".join(vocabulary)], 5)[0]


def test_repeating_a_word_changes_nothing(tmp_path):
    rows = [
        {"id": str(i), "title": "t", "text": text}
        for i, text in enumerate(["red red blue", "blue green", "green"])
    ]
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    backend = BM25Backend(tmp_path / "index")
    assert backend.search_now(["blue green green green"], 3) == backend.search_now(["blue green"], 3)


def test_topk_bounds(tmp_path):
    rows = [{"id": str(i), "title": f"t{i}", "text": "same"} for i in range(5)]
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    backend = BM25Backend(tmp_path / "index")
    assert [len(backend.search_now(["same"], k)[0]) for k in (0, 1, 4, 5, 6, 1000)] == [0, 1, 4, 5, 5, 5]
