"""Mixes: counts by ratio and temperature, orders with their guarantees, repeats, the plan of a run."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scout_data.cli import main
from scout_data.columns import groups, read_table
from scout_data.mix import MixSettings, choose_counts
from scout_data.order import interleave, largest_remainder
from scout_data.rows import make_row, read_rows, write_rows
from scout_protocol.errors import UserError

SHARES = st.dictionaries(st.sampled_from("abcd"), st.floats(0.01, 9), min_size=1)
COUNTS = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 60), min_size=1)


@settings(max_examples=200, deadline=None)
@given(counts=COUNTS)
def test_every_prefix_has_the_mix_within_a_row(counts: dict[str, int]) -> None:
    sequence = interleave(counts)
    total, k = len(sequence), len(counts)
    assert Counter(sequence) == counts
    bound = 1 - 1 / (2 * k - 2) if k > 1 else 0  # Tijdeman's
    seen = Counter[str]()
    for step, name in enumerate(sequence, start=1):
        seen[name] += 1
        for other, n in counts.items():
            assert abs(seen[other] - step * n / total) <= bound + 1e-9


@settings(max_examples=200, deadline=None)
@given(shares=SHARES, total=st.integers(0, 999))
def test_largest_remainder(shares: dict[str, float], total: int) -> None:
    counts = largest_remainder(shares, total)
    assert sum(counts.values()) == total
    for name, n in counts.items():
        assert abs(n - total * shares[name] / sum(shares.values())) < 1


def test_counts_by_ratio_and_temperature() -> None:
    have = {"nq": 900, "hotpotqa": 100}
    assert choose_counts(have, MixSettings()) == have
    assert choose_counts(have, MixSettings(rows=50)) == {"nq": 45, "hotpotqa": 5}
    assert choose_counts(have, MixSettings(ratio={"nq": 1, "hotpotqa": 1})) == {"nq": 100, "hotpotqa": 100}
    assert choose_counts(have, MixSettings(ratio={"nq": 0, "hotpotqa": 1})) == {"hotpotqa": 100}
    square = choose_counts(have, MixSettings(temperature=2.0, rows=80))
    assert square == {"nq": 60, "hotpotqa": 20}  # sqrt(900) : sqrt(100)
    assert choose_counts(have, MixSettings(temperature=1.0)) == have
    even = choose_counts(have, MixSettings(temperature=1e9))
    assert even["nq"] == even["hotpotqa"] == 100


@pytest.mark.parametrize(
    ("given_", "told"),
    [
        (MixSettings(ratio={"nq": 1, "hotpotqa": 1}, rows=300), "150 of hotpotqa, which has 100"),
        (MixSettings(ratio={"nq": 1}), "nothing for hotpotqa"),
        (MixSettings(rows=1001), "at most 1000 rows"),
    ],
)
def test_more_rows_than_exist_is_told(given_: MixSettings, told: str) -> None:
    with pytest.raises(UserError, match=told):
        choose_counts({"nq": 900, "hotpotqa": 100}, given_)


@pytest.mark.parametrize(
    "options",
    [
        ["--ratio", "nq=1", "--temperature", "2"],
        ["--temperature", "0"],
        ["--ratio", "nq=-1,hotpotqa=2"],
        ["--ratio", "nq"],
        ["--ratio", "nq=1", "--ratio", "nq=2"],
        ["--ratio", "popqa=1"],
        ["--repeat", "nq=0"],
        ["--repeat", "nq=1.5"],
        ["--repeat", "popqa=2"],
        ["--rows", "0"],
        ["--batch", "0"],
        ["--by", "level"],
        ["--order", "curriculum", "--curriculum", "level"],
    ],
)
def test_wrong_options_are_one_line_and_nothing_is_written(tmp_path: Path, options: list[str]) -> None:
    source = make(tmp_path / "in" / "all.parquet")
    with pytest.raises(UserError):
        main(["mix", "--input", str(source), "--output", str(tmp_path / "x.parquet"), *options])
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def make(path: Path, nq: int = 120, hotpot: int = 40) -> Path:
    sources = ["nq"] * nq + ["hotpotqa"] * hotpot
    made = [
        make_row(f"What is {i}?", [str(i)], "brief", s, "train", i, {"hops": 1 + i % 3 if s != "nq" else 1})
        for i, s in enumerate(sources)
    ]
    write_rows(path, made)
    return path


def run(tmp_path: Path, source: Path, *options: str) -> list[str]:
    out = tmp_path / "mixed.parquet"
    assert main(["mix", "--input", str(source), "--output", str(out), *options]) == 0
    return groups(read_table(out), "data_source")


def test_orders(tmp_path: Path) -> None:
    source = make(tmp_path / "all.parquet")
    shuffled = run(tmp_path, source)
    assert Counter(shuffled) == {"nq": 120, "hotpotqa": 40}
    assert 30 < sum(a != b for a, b in itertools.pairwise(shuffled)) < 90  # 60 expected
    first = (tmp_path / "mixed.parquet").read_bytes()
    manifest = (tmp_path / "mixed.manifest.json").read_bytes()
    run(tmp_path, source)
    assert (tmp_path / "mixed.parquet").read_bytes() == first
    assert (tmp_path / "mixed.manifest.json").read_bytes() == manifest
    assert run(tmp_path, source, "--seed", "1") != shuffled

    for batch in (4, 8):
        names = run(tmp_path, source, "--order", "batches", "--batch", str(batch))
        for start in range(0, len(names), batch):
            assert names[start : start + batch].count("hotpotqa") == batch // 4
    names = run(tmp_path, source, "--order", "interleave")
    assert all(names[i : i + 4].count("hotpotqa") == 1 for i in range(0, len(names), 4))

    run(tmp_path, source, "--order", "curriculum", "--curriculum", "hops")
    hops = groups(read_table(tmp_path / "mixed.parquet"), "hops")
    assert hops == sorted(hops) and len(set(hops)) == 3
    facts = json.loads((tmp_path / "mixed.manifest.json").read_text())
    assert (facts["settings"]["order"], facts["settings"]["curriculum"]) == ("curriculum", "hops")


def test_repeats_have_ids_of_their_own_and_come_round_by_round(tmp_path: Path) -> None:
    source = make(tmp_path / "all.parquet")
    run(tmp_path, source, "--repeat", "hotpotqa=3", "--ratio", "nq=1,hotpotqa=1", "--rows", "200")
    rows = read_rows(tmp_path / "mixed.parquet")
    assert len({row.id for row in rows}) == 200
    times = Counter(Counter(row.question for row in rows if row.data_source == "hotpotqa").values())
    assert times == {2: 20, 3: 20}  # 100 rows of 40 questions: none a third time before all have two
    copies = [row for row in rows if "~" in row.id]
    assert len(copies) == 60 and all(row.id.rpartition("~")[2] in "23" for row in copies)


def test_files_of_several_sources_are_joined(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a.parquet", 10, 0), make(tmp_path / "b.parquet", 0, 10)
    out = tmp_path / "m.parquet"
    assert main(["mix", "--input", str(a), "--input", str(b), "--output", str(out)]) == 0
    assert Counter(row.data_source for row in read_rows(out)) == {"nq": 10, "hotpotqa": 10}


def test_the_tutorials_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = make(tmp_path / "all.parquet", 1226, 400)
    argv = [
        "plan-epochs",
        "--input",
        str(source),
        "--rows",
        "1526",
        "--epochs",
        "2",
        "--batch",
        "8",
        "--n",
        "4",
    ]
    assert main(argv) == 0
    said = capsys.readouterr().out
    assert "1,526 rows x 2 epochs / batch 8 = 382 steps, 12,208 trajectories" in said
    assert "380 steps; 6 rows of each epoch are not seen" in said
    lines = [line.split() for line in said.splitlines()]
    assert ["hotpotqa", "300", "19.7%", "300", "2.00", "2"] in lines
    assert ["nq", "1,226", "80.3%", "1,226", "2.00", "2"] in lines
    assert math.ceil(1526 * 2 / 8) == 382

    run(tmp_path, source, "--repeat", "hotpotqa=3")
    assert main(["plan-epochs", "--input", str(tmp_path / "mixed.parquet"), "--epochs", "1"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["hotpotqa", "1,200", "49.5%", "400", "3.00", "3"] in lines


@pytest.mark.parametrize(
    "options", [["--rows", "0"], ["--rows", "999"], ["--epochs", "0"], ["--batch", "999"], ["--n", "0"]]
)
def test_wrong_plans(tmp_path: Path, options: list[str]) -> None:
    with pytest.raises(UserError):
        main(["plan-epochs", "--input", str(make(tmp_path / "all.parquet")), *options])
