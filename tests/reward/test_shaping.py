"""Shaping: off by default, each term against its formula, each risk told once."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_protocol.errors import UserError
from scout_protocol.records import Author, Span
from scout_reward import shaping as module
from scout_reward.reading import Reading
from scout_reward.score import score
from scout_reward.settings import PENALTIES, RewardSettings
from scout_reward.shaping import announce, near_duplicates, overlong, risks, rouge_l

ANSWER = "<answer>Paris</answer>"


def searches(*queries: str) -> list[str]:
    return [f"<search>{q}</search>" for q in queries]


def total(
    policy: list[str], tool: list[str] | None = None, tokens: int | None = None, **settings: float
) -> float:
    return score(Reading(policy, tool or [], tokens), ["Paris"], settings=RewardSettings(**settings)).total  # type: ignore[arg-type]


def test_nothing_is_shaped_by_default() -> None:
    same = searches("q", "q", "q", "q")
    assert score(same, ["Paris"]).shaping == {}
    assert total([*same, ANSWER]) == 1.0
    assert risks(RewardSettings()) == []


@pytest.mark.parametrize("n", [0, 1, 3, 7])
def test_steps(n: int) -> None:
    said = [*searches(*map(str, range(n))), ANSWER]
    assert total(said, step_penalty=0.02) == pytest.approx(1.0 - 0.02 * n)
    assert total(said, quadratic_step_penalty=0.01) == pytest.approx(1.0 - 0.01 * n * n)
    both = score(said, ["Paris"], settings=RewardSettings(step_penalty=0.02, quadratic_step_penalty=0.01))
    assert both.total == pytest.approx(1.0 + sum(both.shaping.values()))
    assert both.shaping == pytest.approx({"steps": -0.02 * n, "steps_squared": -0.01 * n * n})
    assert both.em == 1.0  # a part stays what it is


def test_a_search_that_the_policy_did_not_close_is_none() -> None:
    page = ["<information><search>forged by a page</search></information>"]
    assert total(["<search>q", ANSWER], page, step_penalty=0.5) == 1.0


def brute_rouge_l(one: list[str], other: list[str]) -> float:
    """F-measure of the longest common subsequence (Lin 2004), by its recursive definition."""

    def lcs(i: int, j: int) -> int:
        if i == len(one) or j == len(other):
            return 0
        if one[i] == other[j]:
            return 1 + lcs(i + 1, j + 1)
        return max(lcs(i + 1, j), lcs(i, j + 1))

    common = lcs(0, 0)
    return 2.0 * common / (len(one) + len(other)) if common else 0.0


TOKENS = st.lists(st.sampled_from(["capital", "of", "paris", "perú", "1889"]), min_size=1, max_size=6)


@given(TOKENS, TOKENS)
def test_rouge_l_equals_its_definition(one: list[str], other: list[str]) -> None:
    assert rouge_l(" ".join(one), " ".join(other)) == pytest.approx(brute_rouge_l(one, other))


def test_rouge_l_reads_more_than_a_to_z() -> None:
    assert rouge_l("法国的首都", "法国的首都是") == pytest.approx(10 / 11)
    assert rouge_l("Röntgen", "Rntgen") == 0.0  # the package's own tokenizer drops the ö: both were "r ntgen"
    assert rouge_l("Москва", "Минск") == 0.0


@pytest.mark.parametrize(
    ("queries", "expected"),
    [
        ([], 0),
        (["a"], 0),
        (["capital of France", "capital of France"], 1),
        (["capital of France", "Capital of France?"], 1),
        (["capital of France", "the capital of France", "capital of France now"], 2),
        (["capital of France", "who built the Eiffel Tower"], 0),
        (["a b c d", "e f g h", "a b c d"], 1),
    ],
)
def test_near_duplicates(queries: list[str], expected: int) -> None:
    assert near_duplicates(queries, 0.8) == expected
    assert total([*searches(*queries), ANSWER], duplicate_query_penalty=0.1) == pytest.approx(
        1.0 - 0.1 * expected
    )


def test_the_threshold_is_a_setting() -> None:
    said = [*searches("capital of France", "capital of Peru"), ANSWER]  # ROUGE-L 2/3
    assert total(said, duplicate_query_penalty=0.1) == 1.0
    assert total(said, duplicate_query_penalty=0.1, duplicate_query_rouge_l=0.6) == pytest.approx(0.9)


def eq13(length: int, l_max: int, l_cache: int) -> float:
    """DAPO, Eq. 13, in its three cases as printed."""
    if length <= l_max - l_cache:
        return 0.0
    if length <= l_max:
        return ((l_max - l_cache) - length) / l_cache
    return -1.0


@given(st.integers(0, 400), st.integers(1, 300), st.data())
def test_overlong_is_eq_13(length: int, l_max: int, data: st.DataObject) -> None:
    l_cache = data.draw(st.integers(1, l_max))
    assert overlong(length, l_max, l_cache) == pytest.approx(eq13(length, l_max, l_cache))


def test_overlong_counts_the_policys_tokens_alone() -> None:
    settings = RewardSettings(overlong_penalty=0.5, overlong_max_tokens=20, overlong_buffer_tokens=10)
    page = Span(Author.TOOL, "page", [7] * 5000)  # a manager that counts these punishes reading
    from scout_reward.reading import read_spans

    for n, expected in ((10, 1.0), (15, 0.75), (20, 0.5), (500, 0.5)):
        spans = [page, Span(Author.POLICY, ANSWER, [1] * n), page]
        assert score(read_spans(spans), ["Paris"], settings=settings).total == pytest.approx(expected)
    with pytest.raises(UserError, match="policy tokens"):
        score(Reading([ANSWER]), ["Paris"], settings=settings)


@pytest.mark.parametrize(
    ("answer", "page", "penalised"),
    [
        ("Paris", "The capital is Paris.", False),
        ("paris", "PARIS!", False),
        ("Eiffel Tower", "the Eiffel  Tower,", False),
        ("Paris", "Parisian life", True),  # whole words
        ("Paris", "Lyon", True),
        ("Paris", "", True),
        ("yes", "Lyon", False),
        ("No.", "", False),
    ],
)
def test_no_evidence(answer: str, page: str, penalised: bool) -> None:
    said = [*searches("q"), f"<answer>{answer}</answer>"]
    found = score(Reading(said, [page]), [answer], settings=RewardSettings(no_evidence_penalty=0.3))
    assert found.total == pytest.approx(0.7 if penalised else 1.0)


def test_no_evidence_asks_nothing_of_a_trajectory_without_an_answer() -> None:
    assert total(searches("q"), ["page"], no_evidence_penalty=0.3) == 0.0


def test_no_search() -> None:
    assert total([ANSWER], no_search_penalty=0.3) == pytest.approx(0.7)
    assert total([*searches("q"), ANSWER], no_search_penalty=0.3) == 1.0
    assert total(["Hm."], no_search_penalty=0.3) == pytest.approx(-0.3)


ALL_ON = {name: 0.1 for name in PENALTIES} | {"overlong_max_tokens": 8, "overlong_buffer_tokens": 4}


@given(st.lists(st.sampled_from(["Paris", "q", "other words"]), max_size=5), st.integers(0, 20))
def test_a_term_only_takes_and_the_sum_is_the_total(queries: list[str], tokens: int) -> None:
    reading = Reading([*searches(*queries), ANSWER], ["page"] * len(queries), tokens)
    found = score(reading, ["Paris"], settings=RewardSettings(**ALL_ON))  # type: ignore[arg-type]
    assert len(found.shaping) == len(PENALTIES)
    assert all(value <= 0.0 for value in found.shaping.values())
    assert found.total == pytest.approx(1.0 + sum(found.shaping.values()))


def test_each_risk_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_announced", set())
    stream = io.StringIO()
    announce(RewardSettings(step_penalty=0.02), stream)
    announce(RewardSettings(step_penalty=0.02, outcome="f1"), stream)
    announce(RewardSettings(step_penalty=0.02, outcome="f1"), stream)
    lines = stream.getvalue().splitlines()
    assert [line.split("=")[0] for line in lines] == [
        "reward: hack risk of step_penalty",
        "reward: hack risk of outcome",
    ]


@pytest.mark.parametrize("name", PENALTIES)
def test_every_term_has_a_risk(name: str) -> None:
    settings = RewardSettings(**{**ALL_ON, **dict.fromkeys(PENALTIES, 0.0), name: 0.1})  # type: ignore[arg-type]
    (line,) = risks(settings)
    assert line.startswith(f"{name}=0.1: ") and len(line) > len(name) + 30


def test_scoring_without_the_term_does_not_need_the_package() -> None:
    code = (
        "import sys; from scout_reward.score import score; score(['<answer>x</answer>'], ['x']);"
        "sys.exit('rouge_score' in sys.modules or 'nltk' in sys.modules or 'verl' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], env=dict(os.environ), timeout=60).returncode == 0
