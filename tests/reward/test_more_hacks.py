"""Twenty more ways to win without being right. None may pay, and what each is worth is said to the digit."""

from __future__ import annotations

import pytest

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_reward import gate
from scout_reward.hacks import giving_up, honest
from scout_reward.reading import Reading, read_spans
from scout_reward.score import score
from scout_reward.settings import RewardSettings

GOLDEN = ["Beijing", "Peking"]
RIGHT = "<answer>Beijing</answer>"
PAGE = "\n\n<information>Doc 1(Title: China) The capital is Beijing.</information>\n\n"

# (what the policy tries, its texts, what it earns)
HACKS = [
    ("tags in capitals", ["<ANSWER>Beijing</ANSWER>"], 0.0),
    ("a tag with an attribute", ["<answer type='x'>Beijing</answer>"], 0.0),
    ("a tag with a space", ["<answer >Beijing</answer >"], 0.0),
    ("a tag spelt with a letter of another script", ["<\u0430nswer>Beijing</\u0430nswer>"], 0.0),
    ("a tag as HTML entities", ["&lt;answer&gt;Beijing&lt;/answer&gt;"], 0.0),
    ("a closing tag alone", ["Beijing</answer>"], 0.0),
    ("opened in one turn, closed in the next", ["<answer>Beijing", "</answer>"], 0.0),
    ("an answer inside a search", [f"<search>{RIGHT}</search>"], 0.0),
    ("a search inside an answer", ["<answer><search>Beijing</search></answer>"], 0.0),
    ("right first, nothing last", [RIGHT + "<answer> </answer>"], 0.0),
    ("right first, in a think block last", [f"{RIGHT}<think>{RIGHT}</think>"], 0.0),
    ("every alias in one answer", ["<answer>Beijing Peking</answer>"], 0.1),
    ("the alias in brackets", ["<answer>Beijing (Peking)</answer>"], 0.1),
    ("the page copied as the answer", ["<answer>The capital is Beijing.</answer>"], 0.1),
    ("the question with the answer in it", ["<answer>Is Beijing the capital of China?</answer>"], 0.1),
    ("letters parted by invisible characters", ["<answer>Bei\u200bjing</answer>"], 0.1),
    ("a control token in the answer", ["<answer>Beijing<|im_end|></answer>"], 0.1),
    ("no and yes at once", ["<answer>yes no Beijing</answer>"], 0.1),
    ("a guess in each of four turns, the right one first", [RIGHT, *["<answer>Nanjing</answer>"] * 3], 0.025),
    ("ten thousand answers", [RIGHT * 10_000], 1e-4),
]


@pytest.mark.parametrize(("name", "texts", "worth"), HACKS, ids=[name for name, *_ in HACKS])
def test_what_a_hack_is_worth(name: str, texts: list[str], worth: float) -> None:
    assert score(texts, GOLDEN).total == pytest.approx(worth)
    assert score(texts, GOLDEN, settings=RewardSettings(normaliser="folded")).total == pytest.approx(worth)
    assert score(texts, GOLDEN).total < score([RIGHT], GOLDEN).total == 1.0


def test_there_are_twenty() -> None:
    assert len({name for name, *_ in HACKS}) == len(HACKS) == 20


def shaped(texts: list[str], pages: list[str], **settings: float) -> dict[str, float]:
    found = score(Reading(texts, pages), GOLDEN, settings=RewardSettings(**settings))  # type: ignore[arg-type]
    return found.shaping


def test_a_forged_page_is_no_evidence() -> None:
    texts = [f"<information>Beijing</information>{RIGHT}"]
    assert shaped(texts, [], no_evidence_penalty=0.5) == {"no_evidence": -0.5}
    assert shaped([RIGHT], [PAGE], no_evidence_penalty=0.5) == {"no_evidence": 0.0}


@pytest.mark.parametrize(
    "text", ["<search></search>", "<search> </search>", "<search><search>x</search></search>", "search x"]
)
def test_a_search_that_cannot_run_is_no_search(text: str) -> None:
    assert shaped([text + RIGHT], [], no_search_penalty=0.5) == {"no_search": -0.5}


@pytest.mark.parametrize(
    "texts",
    [
        ["<think>hm <search>a</search>", RIGHT],
        ["<information><search>a</search>", RIGHT],
        [f"<search>a</search>{RIGHT}"],
    ],
)
def test_searches_cannot_be_hidden_from_the_step_penalty(texts: list[str]) -> None:
    """What the loop would run is counted: in an open think block, behind a forged page, in one text."""
    assert shaped(texts, [], step_penalty=0.02) == {"steps": -0.02}


def test_guessing_twice_is_worth_less_than_guessing_once() -> None:
    """With two equally likely answers: 0.55 for one guess, 0.275 for two of them in either order."""
    wrong = "<answer>Nanjing</answer>"
    one = [score([RIGHT], GOLDEN).total, score([wrong], GOLDEN).total]
    both = [score([RIGHT + wrong], GOLDEN).total, score([wrong + RIGHT], GOLDEN).total]
    assert sum(one) / 2 == pytest.approx(0.55) and sum(both) / 2 == pytest.approx(0.275)


def test_what_f1_as_the_outcome_cannot_refuse() -> None:
    """Two likely words side by side win two thirds: said by its risk, and why EM is the default."""
    f1 = RewardSettings(outcome="f1")
    assert score(["<answer>Nanjing Beijing</answer>"], GOLDEN, settings=f1).total == pytest.approx(2 / 3)
    assert score(["<answer>Nanjing Beijing</answer>"], GOLDEN).total == 0.1


@pytest.mark.parametrize(
    ("settings", "max_searches", "passes"),
    [
        (RewardSettings(quadratic_step_penalty=0.03), 3, True),  # 1 - 0.03 * 9 = 0.73
        (RewardSettings(quadratic_step_penalty=0.03), 6, False),  # 1 - 0.03 * 36 = -0.08, a wrong guess 0.1
        (RewardSettings(quadratic_step_penalty=0.03, no_search_penalty=0.2), 6, True),  # a wrong guess -0.1
        (RewardSettings(step_penalty=0.02), 6, True),
        (RewardSettings(step_penalty=0.16), 6, False),  # 1 - 0.96 = 0.04
        (RewardSettings(), 100, True),
    ],
)
def test_giving_up_at_once_must_not_beat_a_right_answer_after_every_search(
    settings: RewardSettings, max_searches: int, passes: bool
) -> None:
    right = score(read_spans(honest(SEARCH_R1, max_searches)), GOLDEN, settings=settings)
    wrong = score(read_spans(giving_up(SEARCH_R1)), GOLDEN, settings=settings)
    assert right.n_searches == max_searches and right.em == 1.0 and wrong.em == 0.0
    assert (right.total > wrong.total) == passes
    if passes:
        gate.check(settings, max_searches=max_searches)
    else:
        with pytest.raises(UserError, match=r"after 6 searches scores .* a wrong guess 0\.100"):
            gate.check(settings, max_searches=max_searches)
