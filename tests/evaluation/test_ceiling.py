"""The retrieval ceiling through a real server, and on passages made by hand."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from scout_data.rows import make_row
from scout_eval.ceiling import measure, plan_queries, reach_of
from scout_eval.server import random_pool, retrieve, server_facts
from scout_protocol.errors import UserError
from scout_protocol.observation import Document

QUIET = Console(file=io.StringIO())


def row(gold: str = "Rome", **extra: Any) -> Any:
    return make_row("Where is it?", [gold], "search_r1", "made", "test", 0, extra)


def test_what_the_pages_hold(server: Any, rows_file: Any) -> None:
    found = measure(rows_file(20), server.url, console=QUIET)
    overall = found.overall
    assert overall.answer_by_question.mean == 0.0  # the question itself finds other places
    assert overall.answer_by_plan.mean == pytest.approx(16 / 20)  # every fifth gold is on no page
    assert overall.titles_by_plan.mean == 1.0 and overall.titles_by_question.mean == 0.0
    assert (found.topk, found.max_queries, found.n_rows) == (1, 1, 20)
    assert found.by["hops"]["1"].n == 10
    assert len(server.retrieved) == 40 and server.queries == []  # asked the server, played nothing
    assert found.reach["made/made-test-0"].answer is False and found.reach["made/made-test-1"].answer is True


def test_topk_counts(server: Any, rows_file: Any) -> None:
    assert measure(rows_file(3), server.url, topk=4, console=QUIET).topk == 4


@pytest.mark.parametrize(
    ("gold", "text", "found"),
    [
        ("Rome", "He was born in Rome.", True),
        ("Rome", "A Romeo", False),
        ("The Bitter Clock", "wrote Bitter Clock (1990)", True),
        ("10,000", "about 10,000 people", True),
        ("yes", "yes", None),  # stands in any text
        ("No", "no", None),
    ],
)
def test_the_answer_stands_word_for_word(gold: str, text: str, found: bool | None) -> None:
    reach = reach_of(row(gold), [Document("1", "T", text)], [])
    assert reach.answer_by_question is found and reach.answer_by_plan is None


def test_all_supporting_titles_are_needed() -> None:
    two = row(supporting_titles=["Alpha (film)", "Beta"])
    alpha, beta = Document("1", '"Alpha (film)"', ""), Document("2", "beta", "")
    assert reach_of(two, [alpha], [[alpha], [beta]]).titles_by_question is False
    assert reach_of(two, [alpha], [[alpha], [beta]]).titles_by_plan is True
    assert reach_of(row(), [alpha], []).titles_by_question is None


def test_the_plan_of_a_row() -> None:
    steps = [{"think": "t", "query": "A"}, {"think": "t", "query": "B"}, {"think": "done"}]
    assert plan_queries(row(oracle=steps, supporting_titles=["X"])) == ["A", "B"]
    assert plan_queries(row(supporting_titles=["X", "Y", "X"])) == ["X", "Y"]
    assert plan_queries(row()) == []


def test_a_server_that_cannot_retrieve(server: Any, rows_file: Any) -> None:
    server.fail = lambda query: query == "retrieve"
    with pytest.raises(UserError, match="answered 503"):
        measure(rows_file(3), server.url, console=QUIET)
    with pytest.raises(UserError, match="retrieve"):
        retrieve("http://127.0.0.1:1", ["q"], 1)


def test_facts_are_those_that_change_a_result(server: Any) -> None:
    assert server_facts(server.url) == {"backend": "made", "fingerprint": "made:1", "topk": 1}
    assert server_facts("http://127.0.0.1:1") == {}


def test_the_pool_is_the_same_every_time(server: Any) -> None:
    questions = [f"What is the capital of place number{i}?" for i in range(30)]
    pool = random_pool(server.url, questions, seed=1)
    assert pool == random_pool(server.url, questions, seed=1)
    assert [d.title for d in pool] == sorted(f"Place {i}" for i in range(10))


def test_the_random_control_takes_the_evidence_away(server: Any, rows_file: Any, tmp_path: Path) -> None:
    from scout_eval.run import EvalConfig, run_eval
    from scout_eval.trace_log import read_traces

    summary = run_eval(
        EvalConfig(rows_file(30), "oracle", server.url, tmp_path / "out", control="random"), QUIET
    )
    assert summary.metrics.overall.em.mean == 0.0 and summary.metrics.overall.searches == 1.0
    seen = "".join(s.text for t in read_traces(tmp_path / "out" / "traces.jsonl") for s in t.spans[1:])
    assert "has no capital" in seen and "The capital is" not in seen
    assert summary.identity.retriever["fingerprint"] == "made:1"


def test_another_retriever_is_another_evaluation(server: Any, rows_file: Any, tmp_path: Path) -> None:
    from scout_eval.run import EvalConfig, run_eval

    config = EvalConfig(rows_file(4), "oracle", server.url, tmp_path / "out")
    run_eval(config, QUIET)
    server.facts["topk"] = 5
    with pytest.raises(UserError, match="another retriever topk "):
        run_eval(config, QUIET)


def test_an_identity_of_an_older_version_is_read(server: Any, rows_file: Any, tmp_path: Path) -> None:
    from scout_eval.summary import Identity

    old = {
        "stage": "s", "control": "none", "policy": "oracle", "rows_sha256": "", "seed": 0,
        "temperature": 0.0, "settings": {}, "prompt_sha256": "",
    }  # fmt: skip
    found = msgspec.convert(old, Identity)
    assert found.samples == 1 and found.batch_size is None and found.retriever == {}
