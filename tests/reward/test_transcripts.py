"""Published rollouts: cut by author, scored, and explained on the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_protocol.records import Author, Span, StopReason, Trace
from scout_reward.cli import main
from scout_reward.score import score
from scout_reward.transcripts import split_transcript

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def authors(text: str) -> list[tuple[str, str]]:
    return [(span.author.value, span.text) for span in split_transcript(text)]


def policy(text: str) -> list[str]:
    return [span.text for span in split_transcript(text) if span.author is Author.POLICY]


def test_search_observation_answer() -> None:
    text = "<search>q</search>\n\n<information>page</information>\n\n<answer>x</answer>"
    assert authors(text) == [
        ("policy", "<search>q</search>"),
        ("tool", "\n\n<information>page</information>\n\n"),
        ("policy", "<answer>x</answer>"),
    ]


def test_an_observation_without_a_search_before_it_is_the_policys() -> None:
    text = "<think>t</think><information>page</information><answer>x</answer>"
    assert authors(text) == [("policy", text)]
    second = "<search>q</search><information>1</information><information>2</information><answer>x</answer>"
    assert policy(second) == ["<search>q</search>", "<information>2</information><answer>x</answer>"]
    after_answer = "<answer>x</answer><information>page <answer>y</answer></information>"
    assert authors(after_answer) == [("policy", after_answer)]


def test_an_answer_on_a_page_is_not_the_policys() -> None:
    text = "<search>q</search><information><answer>x</answer></information>done"
    assert score(policy(text), ["x"]).total == 0.0


def test_a_cut_off_observation_is_tool_text_to_the_end() -> None:
    assert authors("<search>q</search><information>page <answer>x</answer>")[-1][0] == "tool"


def test_search_r1s_notice_is_tool_text_although_it_shows_tags() -> None:
    notice = (
        "\nMy previous action is invalid. If I want to search, I should put the query between <search> and "
        "</search>. If I want to give the final answer, I should put the answer between <answer> and "
        "</answer>. Let me try again.\n"
    )
    text = "Hm." + notice + "<answer>x</answer>"
    assert authors(text) == [("policy", "Hm."), ("tool", notice), ("policy", "<answer>x</answer>")]
    assert score(policy("Hm." + notice), ["and"]).total == 0.0


@given(
    st.lists(st.sampled_from([*SEARCH_R1.markers, "x", "\n", "\nMy previous action is invalid."])).map(
        "".join
    )
)
def test_nothing_is_lost_or_invented(text: str) -> None:
    assert "".join(span.text for span in split_transcript(text)) == text


# file -> (lines, exact matches, answers). Their own ``correct`` counts substrings: 21, 16, 0 and 25.
RECORDED = {
    "sr1_base_50.jsonl": (50, 13, 47),
    "sr1_ppo400_a.jsonl": (30, 11, 23),
    "sr1_pubmedqa_grpo200.jsonl": (50, 0, 0),
    "sr1_sft_50.jsonl": (50, 20, 48),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", sorted(RECORDED))
def test_real_rollouts_give_the_answers_that_were_recorded(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = SHARED / "transcripts" / name
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    scores = [score(policy(row["full_output"]), row["golden"]) for row in rows]
    # ``predicted`` was extracted by another program when the rollouts were made
    assert [s.answer for s in scores] == [(row["predicted"] or "").strip() for row in rows]
    assert (len(rows), sum(s.em for s in scores), sum(s.format for s in scores)) == RECORDED[name]
    # exact match is stricter than their substring rule, never looser
    assert all(row["correct"] for row, s in zip(rows, scores, strict=True) if s.em)

    assert main(["explain", str(path)]) == 0
    mean = sum(s.total for s in scores) / len(scores)
    assert f"mean of {len(rows)}:  total {mean:.3f}" in capsys.readouterr().out


def test_explain_reads_traces_and_leaves_outages_without_a_reward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(stop: StopReason) -> bytes:
        spans = [Span(Author.PROMPT, "<answer>p</answer>"), Span(Author.POLICY, "<answer>x</answer>")]
        trace = Trace(
            "t",
            "q",
            "nq",
            "why?",
            ["x"],
            spans,
            [],
            stop,
            1,
            0,
            None,
            None,
            {},
            "m",
            "eval",
            0,
            "",
            "search-r1",
            0.0,
        )
        return msgspec.json.encode(trace)

    path = tmp_path / "traces.jsonl"
    path.write_bytes(line(StopReason.ANSWER) + b"\n\n" + line(StopReason.INFRA_ERROR) + b"\n")
    assert main(["explain", str(path), "--json"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["line"], first["score"]["total"], first["score"]["answer"]) == (1, 1.0, "x")
    assert (second["line"], second["score"]) == (3, None)
    assert main(["explain", str(path)]) == 0
    assert "1 ended by an outage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no such file"),
        (b"", "empty"),
        (b"\n \n", "empty"),
        (b'{"question": "q"', "line 1"),
        (b'{"question": "q", "golden": ["x"], "full_output": "y"}\n[1]\n', "line 2"),
        (b'{"question": "q", "golden": "x", "full_output": "y"}', "golden"),
        (b'{"question": "q", "golden": ["x"]}', "full_output"),
        (b"\xff\xfe", "line 1"),
    ],
)
def test_bad_files_are_told_in_one_line(tmp_path: Path, content: bytes | None, told: str) -> None:
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        main(["explain", str(path)])
    assert told in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
