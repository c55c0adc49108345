"""The ranking against BM25 written out from its formula, over every document, with no index at all."""

from __future__ import annotations

import asyncio
import math
import random
import re
import threading
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


def test_common_words_go_where_rarer_ones_are_left(tmp_path):
    """Against the formula without them, on an index that counts as large."""
    rng = random.Random(3)
    rows = []
    for i in range(200):
        rare = rng.choices([f"r{n}" for n in range(60)], k=12)
        common = [
            word for word, share in (("film", 0.5), ("city", 0.35), ("park", 0.19)) if rng.random() < share
        ]
        rows.append({"id": str(i), "title": f"t{i}", "text": " ".join(rare + common)})
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    documents = [words(f"{row['title']}\n{row['text']}") for row in rows]
    holders = Counter(term for document in documents for term in set(document))
    large, small = BM25Backend(tmp_path / "index", common_from=200), BM25Backend(tmp_path / "index")
    for _ in range(30):
        query = [*rng.sample([f"r{n}" for n in range(60)], 3), "film", "city", "park"]
        rarer = [word for word in query if holders[word] <= 40]
        assert not {"film", "city"} & set(rarer)
        for backend, terms in ((large, rarer), (small, query)):
            best = sorted(brute_force(documents, terms), reverse=True)[:5]
            (hits,) = backend.search_now([" ".join(query)], 5)
            assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-5)
    # One rarer word alone would decide everything: then all stay.
    for query in (["film"], ["film", "r1"], ["film", "city", "r1"]):
        assert large.search_now([" ".join(query)], 5) == small.search_now([" ".join(query)], 5)
    everything = BM25Backend(tmp_path / "index", stop_words=(), common_from=200)
    assert everything.search_now(["film r1 r2"], 5) == small.search_now(["film r1 r2"], 5)
    assert large.search_now(["film r1 r2"], 5) != small.search_now(["film r1 r2"], 5)


def test_searches_of_one_turn_go_to_threads_when_there_are_many(tmp_path):
    """A few run in the event loop's own thread; the rest, and whoever comes behind them, elsewhere."""
    rows = [{"id": str(i), "title": f"t{i}", "text": f"same w{i}"} for i in range(50)]
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    main, seen = threading.get_ident(), []

    class Watched(BM25Backend):
        def search_now(self, queries, topk):
            seen.append((queries[0], threading.get_ident() == main))
            return super().search_now(queries, topk)

    async def play():
        backend = Watched(tmp_path / "index")
        many = [f"same w{i}" for i in range(30)]
        started = [asyncio.ensure_future(backend.search([query], 3)) for query in many]
        await asyncio.sleep(0)
        late = asyncio.ensure_future(backend.search(["same w40"], 3))
        found = await asyncio.gather(*started)
        await late
        seen.remove(("same w40", False))  # a new turn, but it does not overtake those that wait
        assert [hits[0][0].id for hits in found] == [str(i) for i in range(30)]
        in_place = [query for query, here in seen if here]
        assert in_place == many[:8] and len(seen) == 30
        await asyncio.sleep(0)
        seen.clear()
        await backend.search(["same w1"], 3)  # a new turn
        await backend.search(["w2 " * 200], 3)  # long
        await backend.search(["w3", "w4"], 3)  # several
        await backend.search(["w5"], 40)  # many passages
        assert [here for _, here in seen] == [True, False, False, False]
        await backend.close()

    asyncio.run(play())
