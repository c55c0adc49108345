"""The folded normaliser: what it forgives, what it does not, and aliases."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_protocol.errors import UserError
from scout_reward.exact_match import accepted_answers, exact_match, matched_answer
from scout_reward.f1 import f1
from scout_reward.normalise import folded, get_normaliser, normalise


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Röntgen", "Rontgen"),
        ("São Tomé", "Sao Tome"),
        ("Øresund", "oresund"),
        ("Łódź", "Lodz"),
        ("Straße", "STRASSE"),
        ("1914–1918", "1914-1918"),
        ("1914 — 1918", "1914-1918"),
        ("−5", "-5"),
        ("Stratford‑upon‑Avon", "Stratford-upon-Avon"),
        ("1\u2009234\u2009567", "1,234,567"),
        ("1\u202f234", "1234"),
        ("1’234", "1234"),
        ("Ｐａｒｉｓ", "Paris"),
        ("“Paris”", "Paris"),
        ("ﬁre", "fire"),
        ("H₂O", "H2O"),
        ("「東京」", "東京"),
        ("e\u0301te", "été"),
    ],
)
def test_typography_is_forgiven(one: str, other: str) -> None:
    assert folded(one) == folded(other)
    assert exact_match(one, [other], folded) == 1.0
    assert f1(one, [other], folded) == 1.0
    assert normalise(one) != normalise(other) or one.isascii() or "'" in one  # the papers' rule does not


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("3 100", "3100"),  # a plain space may part two numbers
        ("May 4 200", "May 4200"),
        ("か", "が"),  # the voicing mark is another letter, no accent
        ("Paris", "Lyon"),
        ("1914–1918", "1914"),
        ("２０", "21"),
    ],
)
def test_different_answers_stay_different(one: str, other: str) -> None:
    assert folded(one) != folded(other)


@given(st.text(max_size=30))
def test_folding_is_stable_and_ignores_case_and_spaces(text: str) -> None:
    assert folded(folded(text)) == folded(text)
    assert folded(f"  {text}\n") == folded(text)


@given(st.text(alphabet=st.characters(max_codepoint=127), max_size=30))
def test_plain_words_are_read_as_the_papers_do(text: str) -> None:
    if not any(c.isdigit() for c in text):  # "5 - 6" and "1'000" are numbers that folding joins
        assert folded(text) == normalise(text)


def test_a_gold_without_content_never_matches() -> None:
    for gold in ("“”", "—", "the", "…"):
        for answer in ("“”", "", "—", "Paris"):
            assert exact_match(answer, [gold], folded) == 0.0


def test_normalisers_have_names() -> None:
    assert (get_normaliser("search_r1"), get_normaliser("folded")) == (normalise, folded)
    with pytest.raises(UserError, match="search_r1, folded"):
        get_normaliser("lower")


def test_aliases_count_as_targets() -> None:
    truth = {"target": ["United States", "USA"], "aliases": ["USA", "America"]}
    assert accepted_answers(truth) == ["United States", "USA", "America"]
    arrays = {"target": np.array(["Paris"], dtype=object), "aliases": np.array([], dtype=object)}
    assert accepted_answers(arrays) == ["Paris"]
    assert matched_answer("america!", accepted_answers(truth)) == "America"
    assert matched_answer("Peru", accepted_answers(truth)) == ""


@pytest.mark.parametrize(
    "truth", ["Paris", {}, {"target": "Paris"}, {"target": []}, {"target": [1]}, {"target": None}]
)
def test_other_shapes_are_refused(truth: object) -> None:
    with pytest.raises(UserError, match="ground_truth"):
        accepted_answers(truth)
