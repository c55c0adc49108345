"""Demonstrations on disk."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scout_protocol.errors import UserError
from scout_protocol.records import SFTRow, SFTTurn
from scout_sft.rows import read_demos, write_demos


def demo(text: str = "<think>é</think><answer> 李 </answer>") -> SFTRow:
    return SFTRow(
        messages=[{"role": "user", "content": "q"}, {"role": "assistant", "content": text}],
        chosen=text,
        question="q",
        golden_answers=["a", "b"],
        found_answer_context=False,
        turns=[SFTTurn("policy", text, True)],
        id="x",
        n_searches=0,
        complete=False,
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    rows = [demo(), demo("second\n\n🎉")]
    write_demos(tmp_path / "new" / "d.parquet", rows)
    assert read_demos(tmp_path / "new" / "d.parquet") == rows
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["d.parquet"]


def test_another_reader_sees_search_r1_shapes(tmp_path: Path) -> None:
    write_demos(tmp_path / "d.parquet", [demo()])
    record = pq.read_table(tmp_path / "d.parquet").to_pylist()[0]
    assert record["messages"][0] == {"role": "user", "content": "q"}
    assert record["turns"] == [{"role": "policy", "text": demo().chosen, "loss": True}]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write_demos(path, [demo()])
    before = path.read_bytes()
    broken = demo()
    broken.golden_answers = [1]  # type: ignore[list-item]
    with pytest.raises(pa.ArrowException):
        write_demos(path, [demo(), broken])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["d.parquet"]


def test_wrong_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    with pytest.raises(UserError, match="no such file"):
        read_demos(path)
    write_demos(path, [demo()])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a readable parquet"):
        read_demos(path)
    pq.write_table(pa.table({"messages": [[]], "chosen": ["x"]}), path)
    with pytest.raises(UserError, match="lacks the columns question, golden_answers"):
        read_demos(path)
    record = {**msgspec.to_builtins(demo()), "golden_answers": "a string"}
    pq.write_table(pa.Table.from_pylist([record]), path)
    with pytest.raises(UserError, match="another type"):
        read_demos(path)
    pq.write_table(pa.Table.from_pylist([record]).slice(0, 0), path)
    with pytest.raises(UserError, match="no row"):
        read_demos(path)
    with pytest.raises(UserError, match="none to write"):
        write_demos(path, [])


def test_the_error_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "d.parquet").write_bytes(b"not parquet\n" * 50)
    with pytest.raises(UserError) as caught:
        read_demos(tmp_path / "d.parquet")
    assert "\n" not in str(caught.value)
