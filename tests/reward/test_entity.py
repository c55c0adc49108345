"""One answer, one entity: lists and alternatives never match, names with separators do."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_reward.entity import is_single_entity
from scout_reward.exact_match import exact_match
from scout_reward.score import score
from scout_reward.settings import RewardSettings

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
F1_OUTCOME = RewardSettings(outcome="f1")
LISTS = [
    "Paris or Lyon",
    "Paris OR Lyon",
    "either Paris or Lyon",
    "Paris / Lyon",
    "Paris/Lyon",
    "Paris; Lyon",
    "Paris | Lyon",
    "Paris\nLyon",
    "- Paris\n- Lyon",
    "1. Paris\n2. Lyon",
    "• Paris • Lyon",
    "Paris, Lyon, Nice",
    "Paris, Lyon",
    "Paris and Lyon",
    "Paris & Lyon",
    "Paris、Lyon",
    "Paris and/or Lyon",
    "Paris, maybe Lyon",
    "Paris (Lyon)",
    "Paris [perhaps Lyon]",
    "Paris - Lyon",
    "Paris — Lyon",
    "Paris. Lyon",
    "Paris? Lyon!",
    "Paris: Lyon",
    "possibly Paris alternatively Lyon",
]


@pytest.mark.parametrize("answer", LISTS)
@pytest.mark.parametrize("golden", [["Paris"], ["Lyon"], ["Paris", "Lyon"]])
def test_a_list_of_candidates_earns_what_a_wrong_answer_earns(answer: str, golden: list[str]) -> None:
    assert exact_match(answer, golden) == 0.0
    assert not is_single_entity(answer, golden)
    for settings in (RewardSettings(), F1_OUTCOME, RewardSettings(normaliser="folded", outcome="f1")):
        found = score([f"<answer>{answer}</answer>"], golden, settings=settings)
        assert (found.total, found.em, found.single) == (0.1, 0.0, 0.0)


@pytest.mark.parametrize(
    "name",
    [
        "Crime and Punishment",
        "Call Me Maybe",
        "Alien: Covenant",
        "Jean-Paul Sartre",
        "St. Louis",
        "Mrs. Dalloway",
        "The Office (American TV series)",
        "12:30",
        "Simon & Garfunkel",
        "Washington, D.C.",
        "May 5, 2017",
        "AC/DC",
        "1,234,567",
        "Oxford, Oxfordshire, England",
        "To Be or Not to Be",
        "24/7",
    ],
)
def test_names_with_separators_are_right_when_they_are_the_answer(name: str) -> None:
    found = score([f"<answer>{name}</answer>"], [name], settings=F1_OUTCOME)
    assert (found.total, found.single) == (1.0, 1.0)


@pytest.mark.parametrize(
    "answer", ["Washington, D.C.", "May 5, 2017", "Tower of London", "1,234", "24/7", "Hans"]
)
def test_a_wrong_name_is_still_one_entity(answer: str) -> None:
    assert is_single_entity(answer, ["something else"])


WORDS = st.sampled_from(["Paris", "Lyon", "Nice", "Nantes", "Brest"])


@given(
    st.lists(WORDS, min_size=2, max_size=5, unique=True),
    st.sampled_from([" or ", "; ", "\n", " / ", " | "]),
    st.data(),
)
def test_naming_more_candidates_never_pays(names: list[str], separator: str, data: st.DataObject) -> None:
    gold = data.draw(WORDS)
    every = score([f"<answer>{separator.join(names)}</answer>"], [gold], settings=F1_OUTCOME)
    one = score([f"<answer>{names[0]}</answer>"], [gold], settings=F1_OUTCOME)
    assert every.total <= one.total


@pytest.mark.shared_data
def test_no_real_golden_answer_is_called_a_list() -> None:
    """Every HotpotQA golden answer, given as the answer, is one entity and earns 1.0."""
    path = SHARED / "hotpotqa" / "hotpot_dev_500.jsonl"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    golds = [row["answers_objects"][0]["spans"][0] for row in rows]
    totals = [score([f"<answer>{gold}</answer>"], [gold], settings=F1_OUTCOME).total for gold in golds]
    assert len(totals) == 500 and set(totals) == {1.0}
