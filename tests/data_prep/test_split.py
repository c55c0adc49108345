"""Splits: exact counts, nothing on both sides, the same every time."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scout_data.cli import main
from scout_data.rows import make_row, read_rows, write_rows
from scout_data.split import split
from scout_protocol.errors import UserError

SHARE = ("--val-share", "0.2")
SOME = ["a cat", "The cat!", "dog", "bird", "x", "y", "z"]


def test_the_tutorials_counts() -> None:
    n_nq, n_hotpot = 79_168, 90_447
    sources = ["nq"] * n_nq + ["hotpotqa"] * n_hotpot
    parts = split([f"q{i}" for i in range(len(sources))], sources, 0.1, seed=0)
    assert (len(parts.train), len(parts.val), parts.groups) == (152_653, 16_962, 169_615)
    by_source = Counter(sources[row] for row in parts.val)
    # in proportion; the tutorial's own split took the file's end, where there is no NQ at all
    assert abs(by_source["nq"] - 0.1 * n_nq) < 1
    assert parts.train == sorted(parts.train) and parts.val == sorted(parts.val)


@settings(max_examples=150, deadline=None)
@given(
    questions=st.lists(st.sampled_from(SOME), min_size=4, max_size=60),
    share=st.floats(0.05, 0.9),
    seed=st.integers(0, 3),
)
def test_no_question_is_on_both_sides(questions: list[str], share: float, seed: int) -> None:
    sources = ["a" if i % 3 else "b" for i in range(len(questions))]
    try:
        parts = split(questions, sources, share, seed)
    except UserError as error:
        assert "empty part" in str(error)
        return
    assert sorted(parts.train + parts.val) == list(range(len(questions)))
    plain = {"a cat": "cat", "The cat!": "cat"}  # an oracle of our own for these few
    sides = [{plain.get(questions[row], questions[row]) for row in part} for part in (parts.train, parts.val)]
    assert not sides[0] & sides[1]
    assert parts == split(questions, sources, share, seed)


def test_exact_although_groups_are_large() -> None:
    questions = ["same"] * 40 + [f"q{i}" for i in range(60)]
    assert len(split(questions, ["nq"] * 100, 0.1, 0).val) == 10


@pytest.mark.parametrize(
    ("share", "rows", "told"),
    [
        (0.0, None, "--val-share"),
        (1.0, None, "--val-share"),
        (float("nan"), None, "--val-share"),
        (0.1, 0, "--val-rows"),
        (0.1, 9, "--val-rows"),
    ],
)
def test_an_empty_part_is_refused(share: float, rows: int | None, told: str) -> None:
    with pytest.raises(UserError, match=told):
        split([f"q{i}" for i in range(9)], ["nq"] * 9, share, 0, rows)


def test_one_question_alone_cannot_be_split() -> None:
    with pytest.raises(UserError, match="empty part"):
        split(["q"] * 10, ["nq"] * 10, 0.5, 0)


def make(path: Path, n: int = 50) -> Path:
    sources = ["nq"] * (n // 2) + ["hotpotqa"] * (n - n // 2)
    write_rows(
        path, [make_row(f"What is {i}?", [str(i)], "brief", s, "dev", i) for i, s in enumerate(sources)]
    )
    return path


def test_files_and_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make(tmp_path / "all.parquet")
    digests = []
    for name in ("a", "b"):
        assert main(["split", "--input", str(source), "--out", str(tmp_path / name), *SHARE]) == 0
        files = sorted((tmp_path / name).iterdir())
        digests.append([hashlib.sha256(p.read_bytes()).hexdigest() for p in files])
    assert digests[0] == digests[1] and len(digests[0]) == 4
    assert "40 rows in train.parquet, 10 in val.parquet; 50 different" in capsys.readouterr().out
    train, val = (read_rows(tmp_path / "a" / f"{name}.parquet") for name in ("train", "val"))
    assert {row.extra_info["split"] for row in train} == {"train"}
    assert {row.extra_info["split"] for row in val} == {"val"}
    everything = {row.id: row for row in read_rows(source)}
    for row in (*train, *val):
        row.extra_info["split"] = "dev"
        assert everything.pop(row.id) == row
    assert not everything
    facts = json.loads((tmp_path / "a" / "train.manifest.json").read_text())
    assert (facts["rows"], facts["seed"], facts["prompt"]["name"]) == (40, 0, "brief")
    assert facts["sources"][0]["sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    other = [
        "split",
        "--input",
        str(source),
        "--out",
        str(tmp_path / "c"),
        "--val-share",
        "0.2",
        "--seed",
        "1",
    ]
    assert main(other) == 0
    assert read_rows(tmp_path / "c" / "val.parquet") != read_rows(tmp_path / "a" / "val.parquet")


def test_evaluation_questions_are_found_whatever_their_spelling(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = make(tmp_path / "all.parquet")
    evaluation = tmp_path / "dev.jsonl"
    evaluation.write_text(
        '{"question": "what is the 7", "answer": ["7"]}\n{"question": "What is 77?", "answer": ["7"]}\n'
    )
    argv = ["split", "--input", str(source), "--out", str(tmp_path / "out"), "--against", str(evaluation)]
    with pytest.raises(UserError, match=r"1 of 50 questions are in it, the first: 'What is 7\?'"):
        main(argv)
    assert not (tmp_path / "out").exists()
    assert main([*argv, "--on-overlap", "drop"]) == 0
    assert "1 rows, 1 rows left out" in capsys.readouterr().out
    kept = [
        row.question for name in ("train", "val") for row in read_rows(tmp_path / "out" / f"{name}.parquet")
    ]
    assert len(kept) == 49 and "What is 7?" not in kept
    assert main([*argv, "--on-overlap", "keep"]) == 0
    assert "overlap with" in capsys.readouterr().out
    itself = ["split", "--input", str(source), "--out", str(tmp_path / "o"), "--against", str(source)]
    with pytest.raises(UserError, match="all 50 questions"):
        main([*itself, "--on-overlap", "drop"])
