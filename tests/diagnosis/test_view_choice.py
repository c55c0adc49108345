"""Which trajectories are shown: filters against plain comprehensions, fair draws, files of a run."""

from __future__ import annotations

import json
import random
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scout_diagnosis import view_cli
from scout_diagnosis.trace_files import trace_files
from scout_protocol.errors import UserError

Make = Callable[..., dict[str, Any]]
Write = Callable[..., Path]
View = Callable[..., list[str]]
STOPS = [
    "answer",
    "max_turns",
    "length",
    "eos",
    "malformed",
    "turn_timeout",
    "trajectory_timeout",
    "infra_error",
]


@pytest.fixture
def view(capsys: pytest.CaptureFixture[str]) -> View:
    """The ids that the command shows, in order."""

    def _view(place: Path, *options: str) -> list[str]:
        assert view_cli.main([str(place), *options]) == 0
        return re.findall(r"^id +(\S+) ·", capsys.readouterr().out, re.MULTILINE)

    return _view


@pytest.fixture
def many(trace: Make) -> list[dict[str, Any]]:
    rng = random.Random(7)
    traces = []
    for i in range(200):
        stop = rng.choice(STOPS + ["answer"] * 8)
        em = float(rng.random() < 0.5) if stop == "answer" else 0.0
        score = {} if stop == "infra_error" or rng.random() < 0.05 else {"em": em}
        call = {"query": "x", "latency_s": 0.1, "valid": True, "infra_error": rng.random() < 0.1}
        extra = {"control": "blank"} if rng.random() < 0.3 else {}
        traces.append(
            trace(
                question_id=f"id{i}", question=f"Where is STRASSE {i % 10}?", stop_reason=stop, score=score,
                tool_calls=[call], stage=rng.choice(["sft", "grpo"]), step=i % 4, extra=extra,
            )
        )  # fmt: skip
    return traces


Fits = Callable[[dict[str, Any]], bool]
ORACLES: list[tuple[list[str], Fits]] = [
    ([], lambda t: True),
    (["--where", "right"], lambda t: t["score"].get("em") == 1.0),
    (["--where", "wrong"], lambda t: t["stop_reason"] == "answer" and t["score"].get("em") == 0.0),
    (["--where", "infra"], lambda t: t["stop_reason"] == "infra_error" or t["tool_calls"][0]["infra_error"]),
    *[(["--where", stop], lambda t, stop=stop: t["stop_reason"] == stop) for stop in STOPS],
    (["--step", "3"], lambda t: t["step"] == 3),
    (["--stage", "sft"], lambda t: t["stage"] == "sft" and not t["extra"]),
    (["--stage", "sft.blank"], lambda t: t["stage"] == "sft" and bool(t["extra"])),
    (["--question", "straße 7"], lambda t: "STRASSE 7" in t["question"]),
    (["--question", "id42"], lambda t: t["question_id"] == "id42"),
    (
        ["--where", "right", "--step", "2", "--stage", "grpo"],
        lambda t: (t["score"].get("em"), t["step"], t["stage"], t["extra"]) == (1.0, 2, "grpo", {}),
    ),
]


@pytest.mark.parametrize(("options", "fits"), ORACLES, ids=[" ".join(o) or "all" for o, _ in ORACLES])
def test_filters(
    options: list[str], fits: Fits, many: list[dict[str, Any]], write: Write, view: View
) -> None:
    path, expected = write(many), [t["question_id"] for t in many if fits(t)]
    assert expected  # the oracle has something to say
    assert view(path, *options, "--count", "1000") == expected
    assert view(path, *options, "--count", "2") == expected[:2]
    drawn = view(path, *options, "--count", "2", "--seed", "5")
    assert len(drawn) == min(2, len(expected))
    assert drawn == [i for i in expected if i in drawn]  # among them, and in their order
    assert view(path, *options, "--count", "1000", "--seed", "5") == expected


def test_a_seed_draws_fairly_and_repeats(trace: Make, write: Write, view: View) -> None:
    path = write([trace(question_id=str(i), spans=[]) for i in range(5)])
    draws = Counter[str]()
    for seed in range(500):
        draws.update(view(path, "--count", "2", "--seed", str(seed)))
    # each of five is in a draw with probability 2/5: mean 200, standard deviation 11
    assert all(150 < draws[str(i)] < 250 for i in range(5)), draws
    assert view(path, "--count", "2", "--seed", "9") == view(path, "--count", "2", "--seed", "9")


def test_nothing_fits_tells_what_there_is(
    trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write([trace(step=2), trace(step=5, stop_reason="eos")])
    assert view_cli.main([str(path), "--where", "infra"]) == 0
    assert capsys.readouterr().out == (
        "none fits: 2 read in 1 file; steps 2 to 5; stages: grpo 2; stopped by: answer 1, eos 1\n"
    )


@pytest.mark.parametrize("cut", ["none", "line end", "some", "all but one"])
def test_a_torn_last_line_is_told_and_the_rest_shown(
    cut: str, trace: Make, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write([trace(question_id="a"), trace(question_id="b ü")])
    whole = path.read_bytes()
    start = whole.index(b"\n") + 1
    at = {
        "none": len(whole),
        "line end": len(whole) - 1,
        "some": (start + len(whole)) // 2,
        "all but one": start + 1,
    }
    path.write_bytes(whole[: at[cut]])
    assert view_cli.main([str(path)]) == 0
    printed = capsys.readouterr()
    complete = cut in ("none", "line end")
    assert printed.out.count("\nid  ") == (2 if complete else 1)
    warning = f"{path}:2: torn last line, left out: still being written, or killed\n"
    assert printed.err == ("" if complete else warning)


@pytest.mark.parametrize(
    "bad", [b"", b"not json", b"{}", b'{"trace_id": 1}', b"\xff\xfe", b"[" * 100_000, b"\0\0", b'"\\ud800"']
)
def test_any_other_bad_line_is_refused_with_its_place(
    bad: bytes, trace: Make, write: Write, view: View, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write([trace(question_id="a"), trace(question_id="b")])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + bad + b"\n" + second)
    with pytest.raises(UserError) as error:
        view_cli.main([str(path)])
    assert str(error.value).startswith(f"{path}:2: ")
    path.write_bytes(first + bad + b"\n")  # last, but with its line end: not torn
    with pytest.raises(UserError, match=r":2: "):
        view_cli.main([str(path)])
    capsys.readouterr()
    assert view(path, "--count", "1") == ["a"]  # reads no further than it must


def test_an_empty_file_is_a_run_that_has_just_begun(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert view_cli.main([str(write([]))]) == 0
    assert capsys.readouterr().out == "no trajectories yet: 0 read in 1 file\n"


def test_a_run_is_its_stages_and_evaluations(trace: Make, write: Write, tmp_path: Path, view: View) -> None:
    names = ["dapo", "eval/grpo", "eval/sft.blank", "grpo"]
    for name in [*names, "checkpoints/a/b"]:
        write([trace(question_id=name)], f"run/{name}/traces.jsonl")
    assert view(tmp_path / "run", "--count", "9") == names
    assert view(tmp_path / "run" / "grpo") == ["grpo"]
    assert view(tmp_path / "run" / "eval") == ["eval/grpo", "eval/sft.blank"]


def test_no_traces_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no traces\.jsonl in it"):
        trace_files(tmp_path)
    with pytest.raises(UserError, match="no such file or folder"):
        trace_files(tmp_path / "absent")


def test_count_must_be_positive(write: Write) -> None:
    with pytest.raises(UserError, match="--count: 0"):
        view_cli.main([str(write([])), "--count", "0"])


@pytest.mark.parametrize("options", [["--where", "eos"], ["--seed", "1"]])
def test_a_large_file_is_not_loaded(options: list[str], trace: Make, tmp_path: Path, view: View) -> None:
    line = json.dumps(trace(spans=[{"author": "tool", "text": "x" * 40_000}])).encode() + b"\n"
    path = tmp_path / "traces.jsonl"
    with path.open("wb") as file:
        for _ in range(1000):  # 40 MB
            file.write(line)
    tracemalloc.start()
    try:
        view(path, *options)
        assert tracemalloc.get_traced_memory()[1] < 8e6
    finally:
        tracemalloc.stop()
