"""RL rows as columns: every way in which a parquet can be bad is one line with row and column."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scout_data.cli import main
from scout_data.columns import concat, groups, keys, read_table, with_split
from scout_data.rows import make_row, read_rows, write_rows, write_table
from scout_protocol.errors import UserError
from scout_protocol.records import RLRow

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))


def rows(n: int = 3, **extra: Any) -> list[RLRow]:
    return [make_row(f"question {i}?", [f"a{i}", "b"], "brief", "nq", "train", i, extra) for i in range(n)]


def raw(tmp_path: Path, **changes: Any) -> Path:
    """A parquet of three rows with some columns replaced; None leaves the column out."""
    path = tmp_path / "x.parquet"
    write_rows(path, rows())
    columns: dict[str, Any] = {name: pq.read_table(path).column(name) for name in pq.read_schema(path).names}
    columns |= changes
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), path)
    return path


def test_a_table_is_what_the_rows_are(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", rows(hops=2))
    table = read_table(tmp_path / "a.parquet")
    write_table(tmp_path / "b.parquet", table)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()
    assert groups(table, "hops") == ["2"] * 3
    assert keys(table) == ["data_source", "hops"]
    with pytest.raises(UserError, match="data_source, hops"):
        groups(table, "level")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"golden_answers": None}, "column golden_answers: missing"),
    ({"golden_answers": None, "answers": [["a"]] * 3}, "the file has only: id"),
    ({"golden_answers": ["['a' 'b']", "x", "y"]}, "row 0, column golden_answers: \"['a' 'b']\""),
    ({"golden_answers": [["a"], [], ["b"]]}, "row 1, column golden_answers: []"),
    ({"golden_answers": [["a"], None, ["b"]]}, "row 1, column golden_answers: None"),
    ({"golden_answers": [["a"], ["b", " "], ["b"]]}, "row 1, column golden_answers: ['b', ' ']"),
    ({"golden_answers": [[["a"]], [["b"]], [["c"]]]}, "row 0, column golden_answers"),
    ({"prompt": [None, None, None]}, "row 0, column prompt: None"),
    ({"prompt": [[{"role": "user", "content": "q"}], None, []]}, "row 1, column prompt: None"),
    ({"prompt": ["text"] * 3}, "row 0, column prompt: 'text'"),
    (
        {"prompt": [[{"role": "user", "content": text}] for text in ("q", None, "r")]},
        "every message needs a content",
    ),
    ({"question": ["q", None, "r"]}, "row 1, column question: None"),
    ({"question": ["q", "r", " \n"]}, "row 2, column question"),
    ({"data_source": ["nq", "", "nq"]}, "row 1, column data_source"),
    ({"reward_model": [None] * 3}, "row 0, column reward_model"),
    ({"id": ["a", "b", "a"]}, "rows 0 and 2 have it"),
    ({"extra_info": ["x"] * 3}, "column extra_info"),
]


@pytest.mark.parametrize(("changes", "told"), BAD)
def test_bad_rows_are_one_line(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = raw(tmp_path, **changes)
    before = sorted(tmp_path.iterdir())
    for argv in (
        ["split", "--input", str(path), "--out", str(tmp_path / "out")],
        ["mix", "--input", str(path), "--output", str(tmp_path / "out" / "m.parquet")],
    ):
        with pytest.raises(UserError) as caught:
            main(argv)
        assert told in str(caught.value) and "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_was_cut_off_is_told(tmp_path: Path) -> None:
    path = raw(tmp_path)
    path.write_bytes(path.read_bytes()[:-50])
    for command in (["audit", str(path)], ["plan-epochs", "--input", str(path)]):
        with pytest.raises(UserError, match="not a readable parquet"):
            main(command)


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame([{**vars_of(row)} for row in rows()])
    frame["golden_answers"] = [np.array(a, dtype=object) for a in frame["golden_answers"]]
    frame.to_parquet(tmp_path / "p.parquet")
    write_rows(tmp_path / "a.parquet", rows())
    assert read_table(tmp_path / "p.parquet").equals(read_table(tmp_path / "a.parquet"))


def vars_of(row: RLRow) -> dict[str, Any]:
    return {name: getattr(row, name) for name in row.__struct_fields__}


def test_keys_of_all_files_are_kept(tmp_path: Path) -> None:
    write_rows(tmp_path / "a.parquet", rows(hops=2))
    write_rows(tmp_path / "b.parquet", rows(level="hard"))
    both = concat([read_table(tmp_path / "a.parquet"), read_table(tmp_path / "b.parquet")])
    assert groups(both, "level") == ["none"] * 3 + ["hard"] * 3
    write_table(tmp_path / "c.parquet", with_split(both.slice(2, 2), "val"))
    found = read_rows(tmp_path / "c.parquet")
    assert [row.extra_info for row in found] == [
        {"index": 2, "split": "val", "question": "question 2?", "hops": 2},
        {"index": 0, "split": "val", "question": "question 0?", "level": "hard"},
    ]
    write_rows(tmp_path / "d.parquet", rows(hops="two"))
    with pytest.raises(UserError, match=r"extra_info\.hops"):
        concat([read_table(tmp_path / "a.parquet"), read_table(tmp_path / "d.parquet")])


@pytest.mark.shared_data
def test_search_r1s_file_goes_through_unchanged(tmp_path: Path) -> None:
    published = SHARED / "nq" / "search_r1_nq_search_test.parquet"
    if not published.is_file():
        pytest.skip(f"{published} is absent")
    out = tmp_path / "x.parquet"
    assert main(["rows", "--input", str(published), "--prompt", "keep", "--output", str(out)]) == 0
    theirs, ours = pq.read_table(published), pq.read_table(out)
    assert ours.schema.equals(theirs.schema.remove_metadata(), check_metadata=False)
    assert ours.equals(theirs.replace_schema_metadata(None))
