"""What one trajectory counts as: the other matches, closed book, samples."""

from __future__ import annotations

from typing import Any

import pytest

from scout_eval.metrics import summarise
from scout_eval.outcomes import covers, folded_match, mentions, outcome
from scout_protocol.records import StopReason, ToolCall


@pytest.mark.parametrize(
    ("answer", "gold", "matches"),
    [
        ("Beyoncé", "Beyonce", True),
        ("1,000", "1000", True),
        ("1939–1945", "1939-1945", True),
        ("ﬁfth", "fifth", True),
        ("Zoë’s", "Zoe's", True),
        ("１２", "12", True),
        ("1,0000", "10000", True),  # punctuation goes anyway
        ("Paris", "London", False),
        ("", "the", False),
        ("?", "?", False),
    ],
)
def test_folded_match(answer: str, gold: str, matches: bool) -> None:
    assert folded_match(answer, ["no", gold]) == float(matches)


@pytest.mark.parametrize(
    ("text", "gold", "covered"),
    [
        ("It is Paris, of course.", "Paris", True),
        ("It is in the New   York area", "New York", True),
        ("York, New", "New York", False),
        ("Parisian", "Paris", False),
        ("anything", "the", False),  # a gold of nothing covers nothing
        ("", "Paris", False),
    ],
)
def test_covers(text: str, gold: str, covered: bool) -> None:
    assert covers(text, [gold]) == float(covered)


def test_a_passage_mentions_what_punctuation_touches() -> None:
    assert mentions("he is from Rome.</information>", ["Rome"])
    assert not covers("he is from Rome.</information>", ["Rome"])
    assert mentions("at 10 A.M. sharp", ["a.m."])
    assert not mentions("the Romeo play", ["Rome"])


def closed(make_trace: Any, answer: str, observation: str, **changes: Any) -> bool | None:
    trace = make_trace(0, observation=f"\n\n<information>{observation}</information>\n\n", **changes)
    trace.score["answer"] = answer
    return outcome(trace).closed_book


def test_closed_book_is_a_right_answer_that_nothing_held(make_trace: Any) -> None:
    assert closed(make_trace, "City", "Doc 1(Title: X) City.") is False
    assert closed(make_trace, "City", "Doc 1(Title: X) Town.") is True
    assert closed(make_trace, "City", "City", turns=("<answer>City</answer>",)) is True  # never searched
    assert closed(make_trace, "yes", "Doc 1(Title: X) yes") is None  # any text holds a yes
    assert closed(make_trace, "Other", "Town", em=0.0) is None
    shares = [
        outcome(make_trace(i, observation=f"\n\n<information>{t}</information>\n\n"))
        for i, t in enumerate(["City", "City", "City", "Town"])
    ]
    assert summarise(shares).overall.closed_book == 0.25


def test_the_tools_part(make_trace: Any) -> None:
    calls = [ToolCall("q", 0.1, True), ToolCall("", 0.3, False), ToolCall("q", 0.2, False, True, "timeout")]
    found = [outcome(make_trace(i, tool_calls=calls[:2], wall_s=float(i))) for i in range(99)]
    found.append(outcome(make_trace(99, stop=StopReason.INFRA_ERROR, tool_calls=calls)))
    tool = summarise(found).tool
    assert tool is not None
    assert (tool.n_calls, tool.n_invalid, tool.infra_kinds) == (99 * 2 + 3, 100, {"timeout": 1})
    assert tool.call_p50_s == pytest.approx(0.2, abs=0.1) and tool.trajectory_p50_s == pytest.approx(
        49, abs=1
    )


def test_samples_count_as_one_question(make_trace: Any) -> None:
    """q0: 3 of 4 right, q1: 0 of 4, q2: 1 of 4."""
    right = {0: 3, 1: 0, 2: 1}
    found = [
        outcome(make_trace(q, float(s < n), extra={"sample": s, "row": {"hops": 1}}))
        for q, n in right.items()
        for s in range(4)
    ]
    metrics = summarise(found)
    assert (metrics.overall.n, metrics.n_trajectories, metrics.samples) == (3, 12, 4)
    assert metrics.overall.em.mean == pytest.approx(4 / 12)
    assert set(metrics.overall.pass_at) == {"1", "2", "4"}
    assert metrics.overall.pass_at["1"].mean == pytest.approx(metrics.overall.em.mean)
    # of the 6 pairs: q0 has 6 with a right one, q2 has 3
    assert metrics.overall.pass_at["2"].mean == pytest.approx((1 + 0 + 0.5) / 3)
    assert metrics.overall.pass_at["4"].mean == pytest.approx(2 / 3)
    # twelve trajectories, but only three questions to draw: the interval is that of three
    alone = summarise([outcome(make_trace(q, float(n > 0))) for q, n in right.items()])
    assert metrics.overall.pass_at["4"] == alone.overall.em


def test_a_lost_sample_lowers_n_and_not_the_score(make_trace: Any) -> None:
    found = [outcome(make_trace(q, 1.0)) for q in range(60) for _ in range(2)]
    found[7] = outcome(make_trace(3, stop=StopReason.INFRA_ERROR))
    metrics = summarise(found)
    assert metrics.overall.pass_at["2"].mean == 1.0 and metrics.overall.n == 60
