"""The gateway against a Wikipedia over HTTPS: what it asks, what it makes of the answer, what it keeps."""

from __future__ import annotations

import asyncio
import re
import time

import pytest
from fake_wikipedia import CountedPolicy, FakeWikipedia, Reply, running
from wiki_conditions import needs_shared
from wiki_helpers import ask, kind_of, wait_steps, with_gateway

from scout_protocol.observation import render
from scout_tools.backends.base import SEARCH_FACTS


@pytest.fixture(scope="module")
def wiki():
    with running() as fake:
        yield fake


@pytest.fixture
def fake(wiki: FakeWikipedia) -> FakeWikipedia:
    wiki.reset()
    return wiki


def test_one_call_gives_title_url_and_summary_best_first(fake, tmp_path):
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "Who was Ada Lovelace?", 3))
    assert len(fake.calls) == 1
    assert [d.title for d in documents] == ["Ada Lovelace", "Charles Babbage"]
    assert documents[0].url == "https://en.wikipedia.org/wiki/Ada_Lovelace"
    assert documents[0].text == "Ada Lovelace (10 December 1815 – 1852) was an English mathematician."
    assert render(documents[:1], style="wiki") == (
        "\n\n<information>**Doc 1 (Title: Ada Lovelace)**\nURL: https://en.wikipedia.org/wiki/Ada_Lovelace\n"
        "Ada Lovelace (10 December 1815 – 1852) was an English mathematician.</information>\n\n"
    )
    call = fake.calls[0]
    assert call.params["generator"] == "search" and call.params["gsrsearch"] == "who was ada lovelace"
    assert call.params["gsrlimit"] == "3" and call.params["redirects"] == "1" and call.params["maxlag"] == "5"
    assert re.fullmatch(r"scout-rl/\S+ \(tests@example\.org\) httpx/\S+", call.headers["user-agent"])


def test_redirects_are_resolved_and_hits_are_not_doubled(fake, tmp_path):
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "Countess of Lovelace", 5))
    assert [d.title for d in documents].count("Ada Lovelace") == 1 and documents[0].title == "Ada Lovelace"


def test_a_misspelt_query_costs_a_second_call_and_no_third(fake, tmp_path):
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "Lovelcae"))
    assert documents[0].title == "Ada Lovelace" and fake.searched() == ["lovelcae", "lovelace"]
    fake.reset()
    fake.suggestions["qwrtz"], fake.suggestions["qwrtzz"] = "qwrtzz", "lovelace"
    assert with_gateway(fake, tmp_path, lambda b: ask(b, "qwrtz")) == []
    assert fake.searched() == ["qwrtz", "qwrtzz"]


def test_a_disambiguation_gives_way_to_its_first_sense(fake, tmp_path):
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "Mercury", 3))
    assert [d.title for d in documents] == ["Mercury (planet)", "Mercury (element)"]
    assert len(fake.calls) == 1  # the first sense was among the hits
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "Mercury", 1))
    assert [d.title for d in documents] == ["Mercury (planet)"] and len(fake.calls) == 3
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "Phoenix", 1))  # its introduction names nothing
    assert [d.title for d in documents] == ["Phoenix (mythology)"] and len(fake.calls) == 5


def test_nothing_to_look_for_is_no_call(fake, tmp_path):
    async def use(backend):
        return [await ask(backend, query) for query in ("", "???", " \n ")] + [await ask(backend, "ada", 0)]

    assert with_gateway(fake, tmp_path, use) == [[]] * 4 and fake.calls == []


def test_a_query_is_never_syntax_of_the_url_or_of_the_search(fake, tmp_path):
    with_gateway(fake, tmp_path, lambda b: ask(b, "ada&titles=Trap page#x insource:/.*/ %00"))
    (call,) = fake.calls
    assert (
        call.params["gsrsearch"] == "ada&titles=trap page#x insource /. / %00" and "titles" not in call.params
    )


def test_markers_of_a_page_stay_inert(fake, tmp_path):
    text = render(with_gateway(fake, tmp_path, lambda b: ask(b, "trap page", 1)), style="wiki")
    assert text.count("</information>") == 1 and "<answer>" not in text and "<search>" not in text
    assert "‹/information›" in text and "<b>" not in text


def test_language_is_part_of_the_host_and_of_the_key(fake, tmp_path):
    url = f"https://{{language}}.localhost:{fake.port}/w/api.php"
    assert with_gateway(fake, tmp_path, lambda b: kind_of(b, "ada"), url=url, language="fr", tries=1) in (
        "tls",
        "connect",
    )
    english = with_gateway(fake, tmp_path, lambda b: ask(b, "ada", 1))
    german = with_gateway(fake, tmp_path, lambda b: ask(b, "ada", 1), language="de")
    assert english == german and len(fake.calls) == 2  # asked again: another language is another key


def test_at_most_twenty_pages_in_one_call(fake, tmp_path):
    documents = with_gateway(fake, tmp_path, lambda b: ask(b, "vault secret", 100))
    assert len(documents) == 20 and fake.calls[0].params["gsrlimit"] == "20"
    assert [d.score for d in documents] == [1 / rank for rank in range(1, 21)]


def test_a_summary_is_cut_at_a_sentence(fake, tmp_path):
    documents = with_gateway(
        fake, tmp_path, lambda b: ask(b, "ada lovelace", 1), summary_chars=60, empty_ttl_s=5.0
    )
    assert len(documents[0].text) <= 60 and documents[0].text.endswith("…")


def test_the_cache_is_asked_first_and_outlives_the_process(fake, tmp_path):
    async def use(backend):
        facts, seen = {}, []
        SEARCH_FACTS.set(facts)
        for query in ("Ada Lovelace", "  ada   LOVELACE? ", "ada lovelace"):
            await ask(backend, query)
            seen.append(facts["cache"])
        return seen, backend.counters()

    levels, counters = with_gateway(fake, tmp_path, use)
    assert levels == ["miss", "lru", "lru"] and len(fake.calls) == 1
    assert counters["cache_misses"] == 1 and counters["cache_hits:lru"] == 2
    levels, counters = with_gateway(fake, tmp_path, use)
    assert levels == ["store", "lru", "lru"] and len(fake.calls) == 1
    assert with_gateway(fake, tmp_path, lambda b: ask(b, "ada lovelace", 1)) != []
    assert len(fake.calls) == 2  # another topk is another key
    with_gateway(fake, tmp_path, lambda b: ask(b, "ada lovelace", 1), summary_chars=100)
    assert len(fake.calls) == 3  # so is another version of the backend


def test_no_results_are_believed_for_a_while_only(fake, tmp_path):
    async def use(backend):
        return [await ask(backend, "qmxjsudek") for _ in range(3)]

    assert with_gateway(fake, tmp_path, use, empty_ttl_s=600.0) == [[], [], []] and len(fake.calls) == 1
    with_gateway(fake, tmp_path / "other", use, empty_ttl_s=0.0)
    assert len(fake.calls) == 4


def test_many_who_want_the_same_ask_once(fake, tmp_path):
    fake.latency_s = 0.1

    async def use(backend):
        found = await asyncio.gather(*(ask(backend, "charles babbage") for _ in range(50)))
        return found, backend.counters()

    found, counters = with_gateway(fake, tmp_path, use)
    assert len(fake.calls) == 1 and all(documents == found[0] for documents in found)
    assert counters["cache_misses"] == 1 and counters["cache_hits:shared"] == 49


def test_one_who_gives_up_does_not_take_the_others_along(fake, tmp_path):
    fake.latency_s = 0.3

    async def use(backend):
        first = asyncio.create_task(ask(backend, "charles babbage"))
        assert await asyncio.to_thread(lambda: any(fake.calls for _ in wait_steps(9.0)))
        second = asyncio.create_task(ask(backend, "charles babbage"))
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert with_gateway(fake, tmp_path, use)[0].title == "Charles Babbage" and len(fake.calls) == 1


def test_the_real_policy_is_kept(fake, tmp_path):
    fake.policy, fake.latency_s = CountedPolicy(burst=3, retry_after_s=1), 0.05

    async def use(backend):
        return await asyncio.gather(*(ask(backend, f"vault {i}", 1) for i in range(7)))

    found = with_gateway(fake, tmp_path, use, timeout_s=120.0, per_second=20.0, tries=10)
    assert [documents[0].title for documents in found] == [f"Vault {i}" for i in range(7)]
    assert fake.max_in_flight <= 3 and fake.refused > 0
    fake.reset()
    fake.policy, start = None, time.monotonic()
    with_gateway(fake, tmp_path / "paced", use, timeout_s=120.0, per_second=4.0)
    # however busy this machine is, call k never comes before its turn: it can only come later
    assert all(call.at - start >= k / 4.0 for k, call in enumerate(fake.calls)) and len(fake.calls) == 7


def test_ready_means_that_wikipedia_answers(fake, tmp_path):
    async def use(backend):
        return [await backend.ready(), await backend.ready()]

    assert with_gateway(fake, tmp_path, use) == [True, True] and len(fake.calls) == 1
    fake.everything = Reply(500, b"<html>")
    assert with_gateway(fake, tmp_path, lambda b: b.ready(), tries=1) is False


@pytest.mark.shared_data
@needs_shared
def test_recorded_pages(tmp_path):
    with running(shared_data=True) as fake:

        async def use(backend):
            return {
                query: [d.title for d in await ask(backend, query, 3)]
                for query in (
                    "Celtuce",
                    "python programming",
                    "hallelulejah",
                    "qmxjsudek",
                    "Communist party",
                    "Dodge Ram (disambiguation)",
                )
            }

        found = with_gateway(fake, tmp_path, use)
        assert (
            found["Celtuce"] == ["Celtuce"] and "Python (programming language)" in found["python programming"]
        )
        assert (
            found["qmxjsudek"] == []
            and "Dodge Ram (disambiguation)" not in found["Dodge Ram (disambiguation)"]
        )
        assert fake.searched().count("hallelulejah") == 1 and "hallelujah" in fake.searched()
        by_query = [query for query in fake.searched() if query]
        assert len(fake.calls) <= 2 * 6 and len(by_query) >= 6
