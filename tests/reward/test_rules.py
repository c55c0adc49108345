"""EM and F1 against brute-force restatements of the published SQuAD, HotpotQA and DROP rules."""

from __future__ import annotations

import json
import os
import re
import string
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_reward.exact_match import exact_match
from scout_reward.f1 import f1, overlap
from scout_reward.normalise import normalise

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

# Text in which the rules have something to do: articles, punctuation, case, closed answers, odd spaces.
WORDS = st.sampled_from(
    [
        "the",
        "The",
        "a",
        "an",
        "yes",
        "No",
        "noanswer",
        "Paris",
        "paris",
        "U.S.",
        "1,000",
        "it's",
        "an-end",
        "é",
        "東京",
    ]
)
TEXTS = st.lists(st.one_of(WORDS, st.text(max_size=4)), max_size=6).map(" ".join)


def squad_tokens(text: str) -> list[str]:
    """SQuAD's rule by walking over characters and words instead of by patterns on the whole text."""
    kept = "".join(c for c in text.lower() if c not in string.punctuation)
    # an article counts between word boundaries, also inside "x\u00b7the\u00b7y"
    words = re.split(r"(\W+)", kept)
    return "".join(" " if w in ("a", "an", "the") else w for w in words).split()


def brute_overlap(answer: str, gold: str) -> tuple[float, float, float]:
    """HotpotQA's (f1, precision, recall), matching tokens one by one."""
    given_tokens, wanted = squad_tokens(answer), squad_tokens(gold)
    closed = {"yes", "no", "noanswer"}
    if given_tokens != wanted and (" ".join(given_tokens) in closed or " ".join(wanted) in closed):
        return 0.0, 0.0, 0.0
    left, shared = list(wanted), 0
    for token in given_tokens:
        if token in left:
            left.remove(token)
            shared += 1
    if shared == 0:
        return 0.0, 0.0, 0.0
    # f1 = 2PR/(P+R) is twice the shared tokens over all tokens
    return 2 * shared / (len(given_tokens) + len(wanted)), shared / len(given_tokens), shared / len(wanted)


@given(TEXTS)
def test_normaliser_equals_the_restated_rule(text: str) -> None:
    assert normalise(text).split() == squad_tokens(text)


@given(TEXTS, TEXTS)
def test_overlap_equals_brute_force(answer: str, gold: str) -> None:
    found = overlap(answer, gold)
    assert (found.f1, found.precision, found.recall) == pytest.approx(brute_overlap(answer, gold))


@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_exact_match_implies_full_f1_and_aliases_only_help(answer: str, golds: list[str]) -> None:
    if exact_match(answer, golds):
        assert f1(answer, golds) == 1.0
    assert exact_match(answer, [*golds, "extra"]) >= exact_match(answer, golds)
    assert f1(answer, [*golds, "extra"]) >= f1(answer, golds)
    best = max((brute_overlap(answer, g)[0] for g in golds), default=0.0)
    assert f1(answer, golds) == pytest.approx(best)


DECORATIONS: list[Callable[[str], str]] = [
    str.upper,
    lambda s: f"  {s}\n\t",
    lambda s: f"the {s}",
    lambda s: f"{s}.",
    lambda s: s.replace(" ", "   "),
]


@given(
    st.lists(st.sampled_from(["Eiffel", "Tower", "1889", "Gustave"]), min_size=1, max_size=4).map(" ".join)
)
@pytest.mark.parametrize("decorate", DECORATIONS)
def test_case_space_article_and_punctuation_do_not_matter(decorate: Callable[[str], str], gold: str) -> None:
    assert exact_match(decorate(gold), [gold]) == 1.0
    assert f1(decorate(gold), [gold]) == 1.0


@pytest.mark.parametrize("gold", ["", "the", "?!", " a ", "An."])
@pytest.mark.parametrize("answer", ["", "the", "?", "Paris"])
def test_a_gold_that_normalises_to_nothing_never_matches(gold: str, answer: str) -> None:
    assert exact_match(answer, [gold]) == 0.0
    assert f1(answer, [gold]) == 0.0


@pytest.mark.parametrize(
    ("answer", "gold", "expected"),
    [
        ("yes", "Yes", 1.0),
        ("yes it is", "yes", 0.0),
        ("no", "no one", 0.0),
        ("noanswer", "Paris", 0.0),
        ("Paris in France", "Paris", 0.5),
        ("Paris or London", "Paris", 0.5),
        ("new new york", "new york", 0.8),
    ],
)
def test_f1_by_hand(answer: str, gold: str, expected: float) -> None:
    assert f1(answer, [gold]) == pytest.approx(expected)


def drop_tokens(text: str) -> set[str]:
    """DROP's rule: split at spaces and hyphens, numbers as floats, articles and punctuation away, a set."""

    def is_number(token: str) -> bool:
        try:
            float(token)
        except ValueError:
            return False
        return True

    found: set[str] = set()
    for raw in re.split(" |-", text.lower()):
        token = raw if is_number(raw) else "".join(c for c in raw if c not in string.punctuation)
        token = str(float(token)) if is_number(token) else token
        found |= set(re.sub(r"\b(a|an|the)\b", " ", token).split())
    return found


def drop_overlap(answer: str, gold: str) -> tuple[float, float, float]:
    """DROP (Dua et al. 2019): overlap of token sets, nothing unless a number of the gold is in the answer."""

    def numbers(tokens: set[str]) -> set[str]:
        return {t for t in tokens if re.fullmatch(r"-?\d+\.\d+(e[+-]?\d+)?|-?inf|nan", t)}

    given_tokens, wanted = drop_tokens(answer), drop_tokens(gold)
    shared = len(given_tokens & wanted)
    if not shared or (numbers(wanted) and not numbers(wanted) & numbers(given_tokens)):
        return 0.0, 0.0, 0.0
    return 2 * shared / (len(given_tokens) + len(wanted)), shared / len(given_tokens), shared / len(wanted)


@pytest.mark.shared_data
def test_recorded_predictions_give_the_reported_aggregates() -> None:
    """EM is equal. The reported F1 is not HotpotQA's but DROP's: re-derived here it is equal too."""
    path = SHARED / "hotpotqa" / "predictions_llama_500.json"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    data = json.loads(path.read_text(encoding="utf-8"))
    rows, reported = data["rows"], data["reported"]
    n = len(rows)
    assert n == reported["count"]
    assert round(sum(exact_match(r["prediction"], r["gold"]) for r in rows) / n, 3) == reported["em"]

    # the fields of supporting paragraphs say nothing of their own: they repeat the EM
    assert {reported[f"sp_{name}"] for name in ("em", "f1", "precision", "recall")} == {reported["em"]}

    drop = [drop_overlap(r["prediction"], r["gold"][0]) for r in rows]
    for column, name in enumerate(("f1", "precision", "recall")):
        assert round(sum(d[column] for d in drop) / n, 3) == reported[name]

    # HotpotQA's own rule on the same predictions: lower, since "Yes, both are …" earns nothing for "yes".
    official = sum(brute_overlap(r["prediction"], r["gold"][0])[0] for r in rows) / n
    assert sum(f1(r["prediction"], r["gold"]) for r in rows) / n == pytest.approx(official)
    assert round(official, 3) == 0.364
