"""Published question files -> RL rows, through the functions and through `scout data`."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scout_data.cli import main
from scout_data.readers import detect_format, load_rows
from scout_data.rows import make_row, read_rows, write_rows
from scout_protocol.errors import UserError
from scout_protocol.prompt import load_prompt

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

HOTPOT = {
    "_id": "h1",
    "question": "Which came first?",
    "answer": "yes",
    "type": "comparison",
    "level": "hard",
    "supporting_facts": [["Alû", 3], ["Lilu (mythology)", 0], ["Alû", 4]],
    "context": [["Alû", ["…"]]],
}
CONTEXTS = {
    "question_id": "c1",
    "question_text": "What post?",
    "answers_objects": [{"number": "", "date": {"day": "", "month": "", "year": ""}, "spans": ["Chief"]}],
    "contexts": [
        {"id": "0", "title": "A", "paragraph_text": "…", "is_supporting": False},
        {"id": "1", "title": "B", "paragraph_text": "…", "is_supporting": True},
    ],
}
NQ = {"question": "when was it", "answer": ["14 December 1972 UTC", "December 1972"]}


def lines(*items: Any) -> bytes:
    return b"".join(json.dumps(item).encode() + b"\n" for item in items)


def put(tmp_path: Path, content: bytes, name: str = "in.json") -> Path:
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_official_hotpotqa(tmp_path: Path) -> None:
    (row,) = load_rows(put(tmp_path, json.dumps([HOTPOT]).encode()), "auto", "system_user", "train")
    assert row.extra_info == {
        "index": 0,
        "split": "train",
        "question": "Which came first?",
        "source_id": "h1",
        "type": "comparison",
        "level": "hard",
        "supporting_titles": ["Alû", "Lilu (mythology)"],
    }
    assert (row.data_source, row.golden_answers) == ("hotpotqa", ["yes"])
    assert row.prompt == load_prompt("system_user").build("Which came first?")


def test_hotpot_with_contexts(tmp_path: Path) -> None:
    date = CONTEXTS | {
        "answers_objects": [{"number": "", "date": {"day": "5", "month": "May", "year": "1901"}, "spans": []}]
    }
    number = CONTEXTS | {"answers_objects": [{"number": "42", "spans": []}]}
    first, second, third = load_rows(put(tmp_path, lines(CONTEXTS, date, number)))
    assert (first.golden_answers, first.extra_info["supporting_titles"]) == (["Chief"], ["B"])
    assert (second.golden_answers, third.golden_answers) == (["5 May 1901"], ["42"])
    assert third.extra_info["index"] == 2


def test_nq_open_keeps_aliases(tmp_path: Path) -> None:
    (row,) = load_rows(put(tmp_path, lines(NQ)))
    assert (row.golden_answers, row.data_source) == (NQ["answer"], "nq")


def test_search_r1_keeps_its_source_and_takes_the_prompt_that_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    write_rows(path, [make_row("q", ["x"], "search_r1", "popqa", "test", 4)])
    (row,) = load_rows(path, "auto", "react", "dev")
    assert (row.data_source, row.extra_info["source_id"], row.extra_info["index"]) == (
        "popqa",
        "popqa-test-4",
        0,
    )
    assert row.prompt == load_prompt("react").build("q")


def without(item: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in item.items() if k != key}


BAD: list[tuple[str, bytes | None, str]] = [
    # format, content, what the line must say
    ("hotpotqa", None, "no such file"),
    ("hotpotqa", b"", "empty"),
    ("hotpotqa", json.dumps([HOTPOT]).encode()[:-40], "not valid JSON"),
    ("hotpotqa", b'["\xff"]', "not valid JSON"),
    ("hotpotqa", b"[" * 100_000, "not valid JSON"),
    ("hotpotqa", b"[]", "at least one question"),
    ("hotpotqa", json.dumps(HOTPOT).encode(), "must be an array"),
    ("hotpotqa", json.dumps([HOTPOT, without(HOTPOT, "answer")]).encode(), "row 1, column answer"),
    ("hotpotqa", json.dumps([HOTPOT | {"answer": ["yes"]}]).encode(), "row 0, column answer"),
    ("hotpotqa", json.dumps([HOTPOT | {"question": "  "}]).encode(), "row 0, column question"),
    ("hotpotqa", json.dumps([HOTPOT | {"answer": ""}]).encode(), "row 0, column answer"),
    ("hotpotqa", json.dumps([HOTPOT | {"supporting_facts": [["A"]]}]).encode(), "column supporting_facts"),
    ("hotpot-contexts", lines(CONTEXTS, without(CONTEXTS, "contexts")), "line 2, column contexts"),
    ("hotpot-contexts", lines(CONTEXTS | {"question_text": ""}), "line 1, column question"),
    ("hotpot-contexts", lines(CONTEXTS | {"answers_objects": []}), "line 1, column answers_objects"),
    ("hotpot-contexts", lines(CONTEXTS | {"contexts": [{"id": "0"}]}), "column contexts[0].title"),
    ("hotpot-contexts", lines(NQ), "line 1, column question_text"),
    ("nq-open", lines(NQ) + b'{"question": "q", "ans', "line 2"),
    ("nq-open", lines(NQ | {"answer": "['a' 'b']"}), "line 1, column answer"),
    ("nq-open", lines(NQ | {"answer": [["a"]]}), "line 1, column answer"),
    ("nq-open", lines(NQ | {"answer": []}), "line 1, column answer"),
    ("nq-open", b"\n\n", "empty"),
    ("search-r1", b"PAR1 cut off", "not a readable parquet"),
    ("auto", lines({"text": "?"}), "no known file shape"),
    ("auto", b"", "empty"),
    ("auto", b"hello", "line 1"),
]


@pytest.mark.parametrize(("name", "content", "told"), BAD)
def test_wrong_input_is_one_line_and_nothing_is_written(
    tmp_path: Path, name: str, content: bytes | None, told: str
) -> None:
    source, target = tmp_path / "in.json", tmp_path / "out" / "x.parquet"
    if content is not None:
        source.write_bytes(content)
    with pytest.raises(UserError) as caught:
        main(["rows", "--input", str(source), "--format", name, "--output", str(target)])
    message = str(caught.value)
    assert told in message
    assert str(source) in message
    assert "\n" not in message
    assert not target.parent.exists()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"golden_answers": ["x"]}, "column golden_answers"),
        ({"golden_answers": None}, "column golden_answers"),
        ({"reward_model": [{"ground_truth": {"target": ["other"]}}]}, "column reward_model"),
        ({"reward_model": [{"ground_truth": {"target": "x"}}]}, "column reward_model"),
        ({"reward_model": ["x"]}, "column reward_model"),
        ({"reward_model": [None]}, "column reward_model"),
        ({"data_source": [""]}, "column data_source"),
        ({"question": [None]}, "column question"),
    ],
)
def test_wrong_search_r1_parquet_names_the_column(tmp_path: Path, changes: dict[str, Any], told: str) -> None:
    columns: dict[str, Any] = {
        "id": ["a"],
        "question": ["q"],
        "golden_answers": [["x"]],
        "data_source": ["nq"],
        "reward_model": [{"ground_truth": {"target": ["x"]}}],
    }
    columns |= changes
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({k: v for k, v in columns.items() if v is not None}), path)
    with pytest.raises(UserError) as caught:
        load_rows(path)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value", "told"),
    [("--limit", "0", "--limit"), ("--prompt", "none", "prompt"), ("--output", "x.csv", "--output")],
)
def test_wrong_options_are_named(tmp_path: Path, option: str, value: str, told: str) -> None:
    source = put(tmp_path, lines(NQ))
    argv = ["rows", "--input", str(source), "--output", str(tmp_path / "x.parquet"), option, value]
    with pytest.raises(UserError) as caught:
        main(argv)
    assert caught.value.field == told
    assert [p.name for p in tmp_path.iterdir()] == ["in.json"]


def test_rows_and_show_and_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = put(tmp_path, lines(*[NQ | {"question": f"question {i} [bold]"} for i in range(20)]), "nq.jsonl")
    digests = []
    for folder in ("a", "b"):
        target = tmp_path / folder / "dev.parquet"
        argv = ["rows", "--input", str(source), "--prompt", "brief", "--limit", "5", "--seed", "3"]
        assert main([*argv, "--output", str(target)]) == 0
        digests.append([hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(target.parent.iterdir())])
    assert digests[0] == digests[1]  # parquet and manifest, byte for byte
    assert len(digests[0]) == 2

    rows = read_rows(tmp_path / "a" / "dev.parquet")
    indices = [row.extra_info["index"] for row in rows]
    assert len(set(indices)) == 5
    assert indices != sorted(indices)  # shuffled before the limit
    assert all(row.question == f"question {i} [bold]" for row, i in zip(rows, indices, strict=True))

    manifest = json.loads((tmp_path / "a" / "dev.manifest.json").read_text())
    assert manifest["sha256"] == hashlib.sha256((tmp_path / "a" / "dev.parquet").read_bytes()).hexdigest()
    assert manifest["sources"] == [
        {
            "file": "nq.jsonl",
            "format": "nq-open",
            "bytes": source.stat().st_size,
            "sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        }
    ]
    assert (manifest["rows"], manifest["rows_by_data_source"], manifest["seed"]) == (5, {"nq": 5}, 3)
    assert manifest["prompt"] == {"name": "brief", "sha256": load_prompt("brief").sha256}

    capsys.readouterr()
    assert main(["show", str(tmp_path / "a" / "dev.parquet"), "--count", "1"]) == 0
    shown = capsys.readouterr().out
    assert f"question {indices[0]} [bold]" in shown
    assert f"question {indices[1]} [bold]" not in shown
    assert '"rows_by_data_source"' in shown
    with pytest.raises(UserError, match="--start"):
        main(["show", str(tmp_path / "a" / "dev.parquet"), "--start", "5"])


# file -> (format, rows, data source, rows with exactly two supporting titles)
REAL = {
    "hotpotqa/hotpot_dev_500.jsonl": ("hotpot-contexts", 500, "hotpotqa", 500),
    "hotpotqa/hotpot_train_100.json": ("hotpotqa", 100, "hotpotqa", 100),
    "nq/search_r1_nq_search_test.parquet": ("search-r1", 3610, "nq", 0),
    "nq/NQ-open.dev.jsonl": ("nq-open", 3610, "nq", 0),
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", sorted(REAL))
def test_real_files(tmp_path: Path, name: str) -> None:
    source = SHARED / name
    if not source.is_file():
        pytest.skip(f"{source} is absent")
    expected_format, count, data_source, with_titles = REAL[name]
    assert detect_format(source) == expected_format
    rows = load_rows(source)
    assert len(rows) == count
    assert {row.data_source for row in rows} == {data_source}
    assert sum(len(row.extra_info.get("supporting_titles", [])) == 2 for row in rows) == with_titles
    assert len({row.id for row in rows}) == count
    write_rows(tmp_path / "x.parquet", rows)
    assert read_rows(tmp_path / "x.parquet") == rows


@pytest.mark.shared_data
def test_two_publications_of_nq_dev_agree() -> None:
    """Search-R1's parquet and NQ-open hold the same questions and answers, published independently."""
    parquet, jsonl = SHARED / "nq" / "search_r1_nq_search_test.parquet", SHARED / "nq" / "NQ-open.dev.jsonl"
    if not (parquet.is_file() and jsonl.is_file()):
        pytest.skip(f"{parquet.parent} is absent")
    ours, theirs = (
        sorted((r.question.rstrip("?"), r.golden_answers) for r in load_rows(p)) for p in (parquet, jsonl)
    )
    assert ours == theirs


def test_plain_questions_and_their_names_for_answers(tmp_path: Path) -> None:
    source = put(
        tmp_path,
        lines(
            {"question": "q1", "answer": "a"},
            {"question": "q2", "answers": ["a", "b"], "id": 7, "type": "bridge", "level": "hard", "hops": 2},
            {"question": "q3", "golden_answers": ["c"], "data_source": "mine"},
        ),
    )
    assert detect_format(source) == "qa"
    rows = load_rows(source)
    assert [row.golden_answers for row in rows] == [["a"], ["a", "b"], ["c"]]
    assert [row.data_source for row in rows] == ["qa", "qa", "mine"]
    assert rows[1].extra_info | {"index": 0} == {
        "index": 0,
        "split": "dev",
        "question": "q2",
        "source_id": "7",
        "type": "bridge",
        "level": "hard",
        "hops": 2,
    }
    assert {row.data_source for row in load_rows(source, data_source="ours")} == {"ours"}


def test_long_chains_become_plans_and_facts_reach_the_prompt(tmp_path: Path) -> None:
    item = {
        "question": "Who was the father of the founder of X?",
        "answer": "Byron",
        "facts": ["X was founded by Ada"],
        "chain": [{"query": "X", "result": "Ada"}, {"query": "Ada", "think": "Now Ada.", "result": "Byron"}],
    }
    source = put(tmp_path, lines(item))
    assert detect_format(source) == "long-chain"
    (row,) = load_rows(source, "auto", "fact_list", "train")
    assert (row.data_source, row.extra_info["hops"]) == ("long_chain", 2)
    assert row.extra_info["oracle"] == [
        {"think": "I need to look up X.", "query": "X", "result": "Ada"},
        {"think": "Now Ada.", "query": "Ada", "result": "Byron"},
    ]
    assert row.prompt[-1]["content"].startswith("Fact list:\n- X was founded by Ada\n")
    write_rows(tmp_path / "x.parquet", [row])
    assert read_rows(tmp_path / "x.parquet") == [row]


@pytest.mark.parametrize(
    ("name", "item", "told"),
    [
        ("qa", {"question": "q"}, "line 1, column answer"),
        ("qa", {"question": "q", "answer": "a", "answers": ["a"]}, "needs exactly one of"),
        ("qa", {"question": "q", "answer": ""}, "line 1, column answer"),
        ("qa", {"question": "q", "answer": 3}, "line 1, column answer"),
        ("long-chain", {"question": "q", "answer": "a", "chain": []}, "column chain"),
        ("long-chain", {"question": "q", "answer": "a", "chain": [{"query": " "}]}, "column chain"),
        ("long-chain", {"question": "q", "answer": "a"}, "column chain"),
    ],
)
def test_bad_plain_questions(tmp_path: Path, name: str, item: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError) as caught:
        load_rows(put(tmp_path, lines(item)), name)
    assert told in str(caught.value)


def test_a_prompt_can_only_be_kept_where_there_is_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose a prompt"):
        load_rows(put(tmp_path, lines(NQ)), "auto", "keep")
