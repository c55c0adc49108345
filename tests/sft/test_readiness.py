"""Figures of rollouts by counting, verdicts by hand, and the command against the real tool server."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scout_cli.main import main
from scout_data.rows import write_rows
from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_protocol.records import Author, Span, StopReason, Trace
from scout_sft.readiness import MORE_SFT, READY, TOO_FAR, Limits, findings, verdict
from scout_sft.rollouts import entropy_nats, figures, mixes_languages, pass_at_k, well_formed

SEARCH = "<think>I look it up.</think><search>q</search>"
RIGHT, WRONG = "<think>So.</think><answer>gold</answer>", "<think>So.</think><answer>lead</answer>"
PAGE = "\n\n<information>gold</information>\n\n"


def trace(
    *turns: str, stop: StopReason = StopReason.ANSWER, question: str = "Who is it?", **more: Any
) -> Trace:
    """A trajectory of these turns, a page after each but the last; each turn is one token of log p -0.5."""
    spans = [Span(Author.PROMPT, "prompt", [1])]
    for number, text in enumerate(turns):
        if number:
            spans.append(Span(Author.TOOL, PAGE, [2, 2]))
        spans.append(Span(Author.POLICY, text, [3], [-0.5]))
    n_searches = sum("<search>" in text for text in turns)
    fields = {
        "trace_id": "t",
        "question_id": "q",
        "data_source": "d",
        "question": question,
        "golden_answers": ["gold"],
        "spans": spans,
        "tool_calls": [],
        "stop_reason": stop,
        "n_turns": len(turns),
        "n_searches": n_searches,
        "n_policy_tokens": len(turns),
        "n_tool_tokens": 0,
        "score": {},
        "model": "m",
        "stage": "s",
        "step": 0,
        "prompt_sha256": "",
        "dialect": "search-r1",
        "wall_s": 0.0,
    }
    return Trace(**{**fields, **more})


@pytest.mark.parametrize(
    ("turns", "stop", "good"),
    [
        ((SEARCH, RIGHT), StopReason.ANSWER, True),
        ((WRONG,), StopReason.ANSWER, True),  # right or wrong is not the format's business
        ((SEARCH, SEARCH), StopReason.MAX_TURNS, False),
        (("<search></search>", RIGHT), StopReason.ANSWER, False),  # an empty query
        (("I think so", RIGHT), StopReason.ANSWER, False),
        ((SEARCH + "\n\n", RIGHT), StopReason.ANSWER, True),  # the rest of the token that closed it
        ((SEARCH + " and", RIGHT), StopReason.ANSWER, False),
        (("<information>x</information>" + SEARCH, RIGHT), StopReason.ANSWER, False),  # forged
        ((), StopReason.EOS, False),
    ],
)
def test_well_formed(turns: tuple[str, ...], stop: StopReason, good: bool) -> None:
    assert well_formed(trace(*turns, stop=stop), SEARCH_R1) is good


def test_pass_at_k_is_the_share_of_all_draws() -> None:
    for n, c, k in itertools.product(range(1, 7), range(7), range(1, 7)):
        if c <= n and k <= n:
            draws = list(itertools.combinations([1] * c + [0] * (n - c), k))
            assert pass_at_k(n, c, k) == pytest.approx(sum(any(d) for d in draws) / len(draws))


def test_languages() -> None:
    asked = "Who was the mayor of the town in 1990?"
    same = trace("<think>The mayor is on the page of the town.</think><answer>x</answer>", question=asked)
    other = trace("<think>市长是谁？我先查一下。</think><answer>x</answer>", question=asked)
    assert not mixes_languages(same, SEARCH_R1) and mixes_languages(other, SEARCH_R1)
    short = trace("<think>Vault 7.</think><answer>x</answer>", question=asked)
    assert not mixes_languages(short, SEARCH_R1)  # too short to tell


def test_entropy_is_the_mean_surprise_of_sampled_tokens() -> None:
    one = trace(SEARCH, RIGHT)
    assert entropy_nats([one, one]) == pytest.approx(0.5)
    one.spans[1].logprobs = None
    assert entropy_nats([one]) is None
    uniform = trace(RIGHT)
    uniform.spans[1].logprobs = [-math.log(8)] * 5
    assert entropy_nats([uniform]) == pytest.approx(math.log(8))


def test_figures_by_counting() -> None:
    groups = [
        [trace(SEARCH, RIGHT), trace(SEARCH, WRONG)],  # mixed
        [trace(SEARCH, RIGHT), trace(SEARCH, RIGHT)],  # all right, and the same
        [trace(WRONG), trace("hm", stop=StopReason.EOS)],  # all wrong, but rewards differ by the format
        [trace(WRONG), trace("<answer>tin</answer>")],  # all wrong, not the same
    ]
    noise = [trace("hm", stop=StopReason.EOS), trace("ho", stop=StopReason.EOS)]
    assert figures([noise], SEARCH_R1, 1)["same_action_group_share"] == 0
    found = figures(groups, SEARCH_R1, batch=2)
    assert found["rollouts"] == 8 and found["questions"] == 4 and found["k"] == 2
    assert found["format_adherence"] == 7 / 8
    assert found["searching_share"] == 4 / 8 and found["searches_mean"] == 0.5
    assert found["pass_at_1"] == 3 / 8 and found["pass_at_k"] == 2 / 4
    assert found["first_batch_rewarded_share"] == 3 / 4 and found["first_batch_rollouts"] == 4
    assert found["mixed_group_share"] == 2 / 4
    assert (found["all_right_group_share"], found["all_wrong_group_share"]) == (1 / 4, 2 / 4)
    assert found["same_action_group_share"] == 1 / 4
    assert found["stop_reasons"] == {"answer": 7, "eos": 1}
    assert found["policy_tokens_mean"] == 12 / 8 and found["policy_tokens_p95"] == 2
    with pytest.raises(UserError, match="rollouts"):
        figures([[], []], SEARCH_R1, 2)


GOOD: dict[str, Any] = {
    "format_adherence": 0.99,
    "searching_share": 1.0,
    "first_batch_rewarded_share": 0.3,
    "mixed_group_share": 0.5,
    "same_action_group_share": 0.1,
    "all_right_group_share": 0.1,
    "all_wrong_group_share": 0.4,
    "entropy_nats": 0.1,
    "language_mixing_share": 0.0,
    "cut_share": 0.0,
}


@pytest.mark.parametrize(
    ("changed", "judged"),
    [
        ({}, READY),
        ({"entropy_nats": None}, READY),  # an endpoint does not tell
        ({"format_adherence": 0.9}, MORE_SFT),
        ({"searching_share": 0.4}, MORE_SFT),
        ({"first_batch_rewarded_share": 0.19}, MORE_SFT),
        ({"first_batch_rewarded_share": 0.2}, READY),
        ({"mixed_group_share": 0.1}, MORE_SFT),  # all wrong
        ({"mixed_group_share": 0.1, "all_right_group_share": 0.9}, TOO_FAR),
        ({"same_action_group_share": 0.9}, TOO_FAR),
        ({"entropy_nats": 0.001}, TOO_FAR),
        ({"same_action_group_share": 0.9, "first_batch_rewarded_share": 0.0}, TOO_FAR),
        ({"same_action_group_share": 0.9, "format_adherence": 0.1}, MORE_SFT),  # always the same noise
        ({"language_mixing_share": 0.5, "cut_share": 0.5}, READY),  # told, not decided by
    ],
    ids=str,
)
def test_verdicts(changed: dict[str, Any], judged: str) -> None:
    found = findings({**GOOD, **changed}, Limits())
    assert verdict(found) == judged
    assert all(finding.remedy for finding in found)


def test_limits_have_an_effect_each() -> None:
    low = ("same_action_group_share", "language_mixing_share", "cut_share")
    nearly = {name: 0.01 if name in low else 0.97 for name in GOOD}
    assert all(finding.ok for finding in findings(nearly, Limits()))
    missed = []
    for name in Limits.__dataclass_fields__:
        strict = Limits(**{name: 0.0 if name.startswith("max") else 1.0})
        missed += [finding.name for finding in findings(nearly, strict) if not finding.ok]
    assert len(missed) == len(set(missed)) == len(Limits.__dataclass_fields__)
    with pytest.raises(UserError, match="--min-format"):
        Limits(min_format=1.5)


@pytest.mark.timeout(120)
def test_the_command_judges_an_untrained_model_and_a_scripted_one(
    mini: Any, model_dir: Path, server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.parquet"
    write_rows(rows, mini.rows)
    out = tmp_path / "r" / "readiness.json"
    common = ["sft", "readiness", "--rows", str(rows), "--server", server_url, "--out", str(out)]
    few = ["--samples", "3", "--limit", "4", "--max-turn-tokens", "24", "--max-response-tokens", "96"]
    assert main([*common, "--model", str(model_dir), *few]) == 1
    report = json.loads(out.read_text())
    assert report["schema"] == "scout.readiness/1" and report["verdict"] == "more_sft"
    assert report["figures"]["rollouts"] == 12 and report["figures"]["format_adherence"] == 0.0
    assert report["figures"]["entropy_nats"] > 3  # next to uniform over some hundred tokens
    assert len(report["model_mark"]) == 64
    assert len((tmp_path / "r" / "readiness.traces.jsonl").read_text().splitlines()) == 12
    assert "more_sft: more SFT" in capsys.readouterr().out

    # where preflight looks for it, unless told otherwise
    beside = ["sft", "readiness", "--rows", str(rows), "--server", server_url, "--model", str(model_dir)]
    assert main([*beside, *few, "--samples", "1", "--limit", "1"]) == 1
    from scout_train.preflight import readiness as preflight
    from scout_train.preflight.finding import Verdict

    asked: Any = SimpleNamespace(readiness=None, model=model_dir)
    assert preflight.readiness(asked).verdict is Verdict.REFUSE  # more_sft

    # the oracle never errs: nothing is left to learn, and all its rollouts are the same
    assert main([*common, "--policy", "oracle", "--samples", "2"]) == 1
    report = json.loads(out.read_text())
    assert report["verdict"] == "too_far" and report["figures"]["entropy_nats"] is None
    assert report["figures"]["pass_at_1"] == report["figures"]["format_adherence"] == 1.0
    assert report["figures"]["same_action_group_share"] == 1.0
    # with limits that ask for less it is ready
    lax = ["--max-same-actions", "1", "--min-mixed", "0"]
    assert main([*common, "--policy", "oracle", "--samples", "2", *lax]) == 0
    capsys.readouterr()


def test_a_prompt_without_room_for_an_answer_is_refused(
    mini: Any, model_dir: Path, server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.parquet"
    write_rows(rows, mini.rows[:2])
    argv = ["--model", str(model_dir), "--rows", str(rows), "--server", server_url, "--max-model-len", "8"]
    assert main(["sft", "readiness", *argv, "--out", str(tmp_path / "r.json")]) == 2
    assert "prompt of mini-" in capsys.readouterr().err and not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--policy", "oracle", "--rows", "ROWS", "--server", "http://127.0.0.1:9"], "were lost"),
        (["--rows", "ROWS"], "give one of the two"),
        (["--policy", "oracle", "--rows", "absent.parquet"], "no such file"),
        (["--policy", "oracle", "--rows", "ROWS", "--samples", "0"], "--samples"),
        (["--policy", "oracle", "--rows", "ROWS", "--batch", "0"], "--batch"),
        (["--model", "/nowhere", "--rows", "ROWS"], "is not a model folder"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:2]),
)
def test_wrong_input_is_one_line(
    argv: list[str], says: str, mini: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = tmp_path / "rows.parquet"
    write_rows(rows, mini.rows)
    argv = [str(rows) if word == "ROWS" else word for word in argv]
    assert main(["sft", "readiness", *argv, "--out", str(tmp_path / "r.json")]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("scout sft: ") and says in last
    assert not (tmp_path / "r.json").exists()
