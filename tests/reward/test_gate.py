"""The golden gate: it passes what is sound, and refuses each fault that it is there for."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from scout_protocol.dialect import REACT, SEARCH_R1, Dialect
from scout_protocol.errors import UserError
from scout_protocol.normalise import normalise
from scout_reward import gate
from scout_reward import score as score_module
from scout_reward.cli import main
from scout_reward.hacks import honest, known_hacks
from scout_reward.reading import Reading, read_spans
from scout_reward.score import score
from scout_reward.settings import RewardSettings

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
SOUND = [
    RewardSettings(),
    RewardSettings(answer_tags="search_r1", format_score=0.0),
    RewardSettings(normaliser="folded", outcome="f1"),
    RewardSettings(format_score=0.3, format_schedule="linear", format_steps=10),
    RewardSettings(
        step_penalty=0.02, no_search_penalty=0.1, no_evidence_penalty=0.1, duplicate_query_penalty=0.1
    ),
    RewardSettings(overlong_penalty=0.5, overlong_max_tokens=64, overlong_buffer_tokens=16),
]


@pytest.mark.parametrize("settings", SOUND)
def test_sound_settings_pass(settings: RewardSettings) -> None:
    passed = gate.check(settings)
    assert "1.000  an honest right answer" in passed
    assert len({line.split("  ")[1] for line in passed}) == 13


@pytest.mark.parametrize("dialect", [SEARCH_R1, REACT], ids=lambda d: d.name)
def test_there_are_twelve_hacks_and_none_is_worth_an_honest_answer(dialect: Dialect) -> None:
    hacks = known_hacks(dialect)
    assert len(hacks) == len({hack.name for hack in hacks}) == 12
    best = score(read_spans(honest(dialect)), ["Beijing"], dialect)
    assert (best.total, best.n_searches) == (1.0, 1)
    for hack in hacks:
        assert score(read_spans(hack.spans), hack.golden, dialect).total <= 0.1
        assert best.total > score(read_spans(hack.spans), hack.golden, dialect).total


@pytest.mark.parametrize(
    "settings",
    [
        RewardSettings(step_penalty=1.5),
        RewardSettings(quadratic_step_penalty=0.95),
        RewardSettings(overlong_penalty=3.0, overlong_max_tokens=8, overlong_buffer_tokens=8),
    ],
)
def test_penalties_that_make_a_hack_worth_more_are_refused(settings: RewardSettings) -> None:
    with pytest.raises(UserError, match="lower the penalties"):
        gate.check(settings)


def leaks() -> dict[str, object]:
    """Faults that real reward functions have had, put into ours."""

    def mixed(reading: object, *rest: object, **more: object) -> object:
        assert isinstance(reading, Reading)
        return real(Reading([*reading.policy_texts, *reading.tool_texts]), *rest, **more)  # type: ignore[arg-type]

    def joined(reading: object, *rest: object, **more: object) -> object:
        assert isinstance(reading, Reading)
        pairs = zip(reading.policy_texts, [*reading.tool_texts, ""], strict=False)
        return real(Reading(["".join(p + t for p, t in pairs)]), *rest, **more)  # type: ignore[arg-type]

    real = score_module.score
    return {"reads tool text as turns": mixed, "reads policy and tool text as one string": joined}


@pytest.mark.parametrize("name", sorted(leaks()))
def test_a_reader_that_leaks_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "score", leaks()[name])
    with pytest.raises(UserError, match="a leak"):
        gate.check()


def test_a_matcher_that_is_too_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def substring(answer: str, golden: list[str], normaliser: object) -> str:
        return next((g for g in golden if g.lower() in answer.lower()), "")

    monkeypatch.setattr(score_module, "matched_answer", substring)
    with pytest.raises(UserError, match="every candidate in one answer"):
        gate.check()


def test_a_matcher_that_never_matches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_module, "matched_answer", lambda *_: "")
    with pytest.raises(UserError, match=r"honest right answer scores 0\.1"):
        gate.check()


@pytest.mark.parametrize("broken", [["the"], ["?", ""], ["a <answer>b</answer>"], []])
def test_golden_answers_that_cannot_be_won_are_counted(broken: list[str]) -> None:
    assert gate.check_golden([["Paris"], ["the", "Lyon"]]) == 2
    with pytest.raises(UserError, match="1 of 2 questions cannot be won, the first is row 2"):
        gate.check_golden([["Paris"], broken])
    told = io.StringIO()
    assert gate.check_golden([["Paris"]] * 100 + [broken], stream=told) == 100  # 1 of 101: told, not refused
    assert told.getvalue().startswith("reward: rows: 1 of 101 questions cannot be won, the first is row 101")


@pytest.mark.shared_data
def test_the_real_nq_file_has_answers_that_cannot_be_won() -> None:
    path = SHARED / "nq" / "search_r1_nq_search_test.parquet"
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    parquet = pytest.importorskip("pyarrow.parquet")
    golden = parquet.read_table(path, columns=["golden_answers"])["golden_answers"].to_pylist()
    empty = sum(not any(normalise(answer) for answer in answers) for answers in golden)
    told = io.StringIO()
    assert gate.check_golden(golden, stream=told) == 3610 - empty
    assert f"{empty} of 3610" in told.getvalue() and "[')']" in told.getvalue()


def test_the_command_prints_what_passed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gate"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "gate: passed" and len(lines) == 14
    with pytest.raises(UserError, match="lower the penalties"):
        main(["gate", "--set", "step_penalty=2"])
