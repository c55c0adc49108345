"""RL rows on disk: Search-R1's columns and types, the same bytes every time, all or nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scout_data.rows import COLUMNS, make_row, read_rows, write_rows
from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt
from scout_protocol.records import RLRow

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
NASTY = 'Who wrote "Ὀδύσσεια" (the\tOdyssey), 東京 {question} \U0001f600?'


def rows(count: int = 4) -> list[RLRow]:
    made = []
    for i in range(count):
        extra: dict[str, Any] = {"hops": i % 3 + 1, "oracle": [{"query": f"q{i}", "title": "T"}] * (i % 3)}
        if i % 2:
            extra["supporting_titles"] = [f"Title {i}", "é"]
        made.append(make_row(f"{NASTY} {i}", [f"x{i}", "y"], "brief", "world", "train", i, extra))
    return made


def test_a_row_holds_what_search_r1_expects() -> None:
    row = make_row(" Who? ", ("x",), "search_r1", "nq", "test", 7, {"level": None, "index": 99, "hops": 2})
    assert row.prompt == load_prompt("search_r1").build("Who?")
    assert row.reward_model == {"ground_truth": {"target": ["x"]}, "style": "rule"}
    assert row.extra_info == {"index": 7, "split": "test", "question": "Who?", "hops": 2}
    assert (row.id, row.question, row.golden_answers, row.ability) == (
        "nq-test-7",
        "Who?",
        ["x"],
        "fact-reasoning",
    )


def test_round_trip_keeps_everything(tmp_path: Path) -> None:
    write_rows(tmp_path / "new" / "a.parquet", rows())
    assert read_rows(tmp_path / "new" / "a.parquet") == rows()
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.parquet"]  # no temporary file is left


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rows(tmp_path / name, rows())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_lists_empty_in_every_row_are_stored_as_lists(tmp_path: Path) -> None:
    made = [make_row("q", ["x"], "brief", "w", "dev", i, {"titles": []}) for i in range(2)]
    write_rows(tmp_path / "a.parquet", made)
    assert read_rows(tmp_path / "a.parquet") == made


def test_the_readers_of_verl_see_dicts_and_lists(tmp_path: Path) -> None:
    """verl 0.9.1 reads with `datasets`; other trainers with pandas."""
    path = tmp_path / "a.parquet"
    write_rows(path, rows())
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_parquet(path)
    assert frame["extra_info"][2]["oracle"][1]["query"] == "q2"
    assert list(frame["reward_model"][1]["ground_truth"]["target"]) == ["x1", "y"]
    datasets = pytest.importorskip("datasets")
    table = datasets.load_dataset("parquet", data_files=str(path), cache_dir=str(tmp_path / "hf"))["train"]
    assert table[1]["prompt"] == rows()[1].prompt
    assert table[1]["extra_info"]["supporting_titles"] == ["Title 1", "é"]
    assert table[0]["extra_info"]["supporting_titles"] is None  # what read_rows leaves out


@pytest.mark.shared_data
def test_the_schema_is_search_r1s(tmp_path: Path) -> None:
    published = SHARED / "nq" / "search_r1_nq_search_test.parquet"
    if not published.is_file():
        pytest.skip(f"{published} is absent")
    theirs = pq.read_schema(published).remove_metadata()
    plain = [make_row("q", ["x"], "search_r1", "nq", "test", 0)]
    write_rows(tmp_path / "a.parquet", plain)
    ours = pq.read_schema(tmp_path / "a.parquet").remove_metadata()
    assert ours.names == theirs.names == list(COLUMNS)
    for name in set(COLUMNS) - {"extra_info"}:
        assert ours.field(name).type == theirs.field(name).type, name
    for key in ("index", "split"):
        assert ours.field("extra_info").type.field(key) == theirs.field("extra_info").type.field(key)

    read = read_rows(published)
    assert len(read) == 3610
    assert (read[0].question, read[0].golden_answers) == (
        "who got the first nobel prize in physics?",
        ["Wilhelm Conrad Röntgen"],
    )
    assert read[3609].extra_info == {"index": 3609, "split": "test"}
    # our prompt file is the prompt they published, but for their closing line break
    assert (
        load_prompt("search_r1").build(read[0].question)[0]["content"] + "\n" == read[0].prompt[0]["content"]
    )


@pytest.mark.parametrize(
    ("question", "answers", "told"),
    [
        ("", ["x"], "column question"),
        (" \n", ["x"], "column question"),
        ("q", [], "column golden_answers"),
        ("q", "Paris", "column golden_answers"),
        ("q", "['Paris' 'Paname']", "column golden_answers"),
        ("q", [["Paris"]], "column golden_answers"),
        ("q", np.array([["Paris"]]), "column golden_answers"),
        ("q", ["x", ""], "column golden_answers"),
        ("q", [3], "column golden_answers"),
        ("q", None, "column golden_answers"),
    ],
)
def test_unusable_rows_are_told(question: str, answers: Any, told: str) -> None:
    with pytest.raises(UserError, match="row 5") as caught:
        make_row(question, answers, "brief", "w", "dev", 5)
    assert told in str(caught.value)


def test_numpy_answers_are_read_as_lists() -> None:
    row = make_row("q", np.array(["x", "y"], dtype=object), "brief", "w", "dev", 0)  # type: ignore[arg-type]
    assert row.golden_answers == ["x", "y"]


@pytest.mark.parametrize("values", [(1, "one"), ({"a": 1}, [1]), ({}, {})])
def test_a_key_without_one_type_is_named_and_nothing_is_written(
    tmp_path: Path, values: tuple[Any, Any]
) -> None:
    made = [make_row("q", ["x"], "brief", "w", "dev", i, {"odd": v}) for i, v in enumerate(values)]
    with pytest.raises(UserError, match=r"extra_info\.odd"):
        write_rows(tmp_path / "a.parquet", made)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    write_rows(path, rows())
    before = path.read_bytes()
    with pytest.raises(UserError):
        write_rows(path, [])
    bad = rows()
    bad[0].question = 3  # type: ignore[assignment]
    with pytest.raises((UserError, pa.ArrowException)):
        write_rows(path, bad)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.parquet"]


def test_a_path_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="writable"):
        write_rows(tmp_path / "file" / "a.parquet", rows())


def table(**changes: Any) -> pa.Table:
    columns: dict[str, Any] = {
        "id": ["a", "b"],
        "question": ["q", "r"],
        "golden_answers": [["x"], ["y"]],
        "data_source": ["nq", "nq"],
        "prompt": [[{"content": "q", "role": "user"}]] * 2,
        "ability": ["fact-reasoning"] * 2,
        "reward_model": [{"ground_truth": {"target": [t]}, "style": "rule"} for t in "xy"],
        "extra_info": [{"index": 0, "split": "dev"}] * 2,
    }
    columns |= changes
    return pa.table({k: v for k, v in columns.items() if v is not None})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"golden_answers": None}, "column golden_answers"),
        ({"question": ["q", ""]}, "row 1, column question"),
        ({"question": ["q", None]}, "row 1, column question"),
        ({"golden_answers": ["x", "y"]}, "row 0, column golden_answers"),
        ({"golden_answers": [["x"], []]}, "row 1, column golden_answers"),
        ({"golden_answers": [[["x"]], [["y"]]]}, "row 0, column golden_answers"),
        ({"prompt": ["text", "text"]}, "row 0"),
        ({"prompt": [None, None]}, "row 0, column prompt: None"),
        ({"prompt": [[{"role": "user", "content": c}] for c in ("q", None)]}, "row 1, column prompt"),
        ({"reward_model": [{"ground_truth": {"target": ["x"]}}] * 2}, "row 1, column reward_model"),
    ],
)
def test_reading_tells_file_row_and_column(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(table(**changes), path)
    with pytest.raises(UserError) as caught:
        read_rows(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_cut_off_and_empty_files_are_told(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with pytest.raises(UserError, match="no such file"):
        read_rows(path)
    write_rows(path, rows())
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match="not a readable parquet"):
        read_rows(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match="not a readable parquet"):
        read_rows(path)
    pq.write_table(table().slice(0, 0), path)
    with pytest.raises(UserError, match="0 rows"):
        read_rows(path)
