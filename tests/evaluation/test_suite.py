"""The seven sets: their files in every shape, their sizes, and the published rows."""

from __future__ import annotations

import http.server
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from scout_data.rows import make_row, read_rows, write_rows
from scout_eval.benchmarks import BENCHMARKS, NAMES
from scout_eval.cli import main
from scout_eval.published import PUBLISHED
from scout_eval.run import EvalConfig, run_eval
from scout_eval.sheet_text import markdown
from scout_eval.suite import load_suite, suite_rows, suite_sheet
from scout_protocol.errors import UserError

SHARED = Path(os.environ.get("SCOUT_SHARED_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
QUIET = Console(file=io.StringIO())


def test_the_published_averages_are_those_of_their_rows() -> None:
    for row in PUBLISHED:
        assert row.source and tuple(row.scores) == NAMES
        assert row.read == "first-hand" or row.read.startswith("second-hand: ")
        assert sum(row.scores.values()) / 7 == pytest.approx(row.average, abs=0.0006), row.method


def test_the_sets() -> None:
    assert NAMES == ("nq", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle")
    assert sum(b.n for b in BENCHMARKS.values()) == 51_713
    assert all(b.hub_file == f"{b.data_source}/{b.split}.jsonl" for b in BENCHMARKS.values())


FLASHRAG = {
    "id": "dev_0",
    "question": "Who is the mother of the director?",
    "golden_answers": ["Ann", "Ann B.", "Ann"],
    "metadata": {
        "type": "compositional",
        "level": "hard",
        "supporting_facts": {"title": ["Film X", "Director Y", "Film X"], "sent_id": [0, 1, 2]},
    },
}
FILES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # set: (name of the file, its text, what the first row must hold)
    "2wikimultihopqa": (
        "dev.jsonl",
        json.dumps(FLASHRAG) + "\n",
        {"golden_answers": ["Ann", "Ann B."], "type": "compositional", "level": "hard"}
        | {"supporting_titles": ["Film X", "Director Y"]},
    ),
    "nq": ("test.jsonl", '{"id": "test_0", "question": "who", "golden_answers": ["W. Röntgen"]}\n', {}),
    "musique": (
        "musique_ans_v1.0_dev.jsonl",
        json.dumps(
            {
                "id": "3hop1__1_2_3",
                "question": "Where?",
                "answer": "Town",
                "answer_aliases": ["Village", "Town"],
                "answerable": True,
                "paragraphs": [{"title": "A", "is_supporting": True}, {"title": "B", "is_supporting": False}],
            }
        )
        + "\n"
        + json.dumps({"id": "2hop__4", "question": "?!", "answer": "", "answerable": False, "paragraphs": []})
        + "\n",
        {"golden_answers": ["Town", "Village"], "hops": 3, "supporting_titles": ["A"]},
    ),
    "triviaqa": (
        "unfiltered-web-dev.json",
        json.dumps(
            {
                "Data": [
                    {
                        "QuestionId": "tc_1",
                        "Question": "Which?",
                        "Answer": {"Value": "Sunset", "Aliases": ["Sunset", "Sunset Blvd"]},
                    }
                ]
            },
            indent=1,
        ),
        {"golden_answers": ["Sunset", "Sunset Blvd"], "source_id": "tc_1"},
    ),
    "popqa": (
        "popQA.tsv",
        "id\tprop\tquestion\tpossible_answers\n"
        '7\toccupation\tWhat is X\'s occupation?\t"[""politician"", ""polit.""]"\n',
        {"golden_answers": ["politician", "polit."], "type": "occupation", "source_id": "7"},
    ),
    "bamboogle": ("bamboogle.csv", 'Question,Answer\n"Who, then?",Reagan\n', {"golden_answers": ["Reagan"]}),
    "hotpotqa": (
        "hotpot_dev_fullwiki_v1.json",
        json.dumps(
            [
                {
                    "_id": "5a", "question": "Same?", "answer": "yes", "type": "comparison", "level": "hard",
                    "supporting_facts": [["A", 0], ["B", 0]], "context": [],
                }
            ]
        ),
        {"golden_answers": ["yes"], "type": "comparison", "level": "hard", "supporting_titles": ["A", "B"]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_each_set_from_a_file(name: str, tmp_path: Path) -> None:
    file, text, wanted = FILES[name]
    (tmp_path / file).write_text(text, encoding="utf-8")
    rows, n, _ = suite_rows(name, tmp_path / "rows.parquet", tmp_path / file)
    assert n == len(rows) == 1
    row = read_rows(tmp_path / "rows.parquet")[0]
    assert row == rows[0] and row.data_source == name and row.id == f"{name}-{BENCHMARKS[name].split}-0"
    for key, value in wanted.items():
        assert (row.golden_answers if key == "golden_answers" else row.extra_info[key]) == value
    manifest = json.loads((tmp_path / "rows.manifest.json").read_text())
    assert manifest["settings"]["set"] == name and manifest["settings"]["expected_rows"] == BENCHMARKS[name].n


def test_a_parquet_of_several_sets_gives_one(tmp_path: Path) -> None:
    rows = [make_row(f"Q{i}?", ["a"], "search_r1", s, "test", i) for i, s in enumerate(["nq", "popqa", "nq"])]
    write_rows(tmp_path / "all.parquet", rows)
    found, n, _ = suite_rows("nq", tmp_path / "out.parquet", tmp_path / "all.parquet")
    assert [r.question for r in found] == ["Q0?", "Q2?"] and n == 2
    with pytest.raises(UserError, match="has no musique question"):
        suite_rows("musique", tmp_path / "out.parquet", tmp_path / "all.parquet")


def test_a_part_keeps_the_ids_of_the_whole(tmp_path: Path) -> None:
    lines = [json.dumps({"id": f"t{i}", "question": f"Q{i}?", "golden_answers": ["a"]}) for i in range(50)]
    (tmp_path / "f.jsonl").write_text("\n".join(lines))
    part, n, _ = suite_rows("nq", tmp_path / "p.parquet", tmp_path / "f.jsonl", limit=10, seed=3)
    assert n == 50 and len(part) == 10 and [r.id for r in part] != [f"nq-test-{i}" for i in range(10)]
    assert all(row.question == f"Q{row.id.rsplit('-', 1)[1]}?" for row in part)
    again, _, _ = suite_rows("nq", tmp_path / "q.parquet", tmp_path / "f.jsonl", limit=10, seed=3)
    assert again == part


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.jsonl", '{"question": "Q?", "golden_answers": []}\n', "line 1, column golden_answers"),
        ("x.jsonl", '{"question": " ", "golden_answers": ["a"]}\n', "line 1, column question"),
        ("x.tsv", "id\tquestion\tpossible_answers\n1\tQ?\tnot json\n", "row 0, column possible_answers"),
        ("x.csv", "Question,Answer\nQ?,\n", "row 0, column answers"),
        ("x.json", '{"Data": 3', "no TriviaQA file"),
        ("x.jsonl", '{"other": 1}\n', "no known file shape"),
    ],
)
def test_a_bad_file_is_one_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=says):
        suite_rows("nq", tmp_path / "out.parquet", tmp_path / name)
    assert not (tmp_path / "out.parquet").exists()


def test_a_folder_laid_out_as_flashrags(tmp_path: Path) -> None:
    (tmp_path / "nq").mkdir()
    (tmp_path / "nq" / "test.jsonl").write_text(FILES["nq"][1])
    assert suite_rows("nq", tmp_path / "out.parquet", tmp_path)[1] == 1
    with pytest.raises(UserError, match=r"popqa/test.jsonl: no such file"):
        suite_rows("popqa", tmp_path / "out.parquet", tmp_path)


def test_unknown_sets(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose one of nq"):
        suite_rows("squad", tmp_path / "out.parquet", tmp_path / "x")


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """The hub's file route, as `hf_hub_download` asks it: HEAD for commit and etag, then GET."""
    data = b"".join(
        json.dumps({"id": f"test_{i}", "question": f"Q{i}?", "golden_answers": ["a"]}).encode() + b"\n"
        for i in range(125)
    )
    path = "/datasets/RUC-NLPIR/FlashRAG_datasets/resolve/main/bamboogle/test.jsonl"

    class Handler(http.server.BaseHTTPRequestHandler):
        def _answer(self, body: bytes) -> None:
            found = self.path == path
            self.send_response(200 if found else 404)
            if found:
                self.send_header("X-Repo-Commit", "c" * 40)
                self.send_header("ETag", '"e"')
                self.send_header("Content-Length", str(len(data)))
            else:
                self.send_header("X-Error-Code", "EntryNotFound")
                self.send_header("Content-Length", "0")
            self.end_headers()
            self.wfile.write(body if found else b"")

        def do_HEAD(self) -> None:
            self._answer(b"")

        def do_GET(self) -> None:
            self._answer(data)

        def log_message(self, format: str, *args: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def rows_from_hub(endpoint: str, name: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """In a process of its own: the client reads its environment once."""
    env = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_OFFLINE": "0",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "*",
        "no_proxy": "*",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    code = "import sys; from scout_cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = ["eval", "suite", "rows", name, "--output", str(tmp_path / "out.parquet")]
    return subprocess.run(
        [sys.executable, "-c", code, *words], env=env, capture_output=True, text=True, timeout=120
    )


def test_from_the_hub(hub: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    done = rows_from_hub(hub, "bamboogle", tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("125 of 125 questions") and "not the whole set" not in done.stdout
    assert len(read_rows(tmp_path / "out.parquet")) == 125


def test_a_hub_that_has_not_got_it(hub: str, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    done = rows_from_hub(hub, "nq", tmp_path)
    assert done.returncode == 2 and done.stderr.strip().endswith("name it with --input")
    assert "Traceback" not in done.stderr


def test_one_table_over_the_sets(server: Any, tmp_path: Path, capsys: Any) -> None:
    for name, n_right in (("nq", 10), ("bamboogle", 5)):
        rows = []
        for i in range(10):
            gold = f"City {i}" if i < n_right else "Nowhere"
            extra = {"supporting_titles": [f"Capital of {i}"]}
            rows.append(make_row(f"Capital of {i}?", [gold], "search_r1", name, "test", i, extra))
        write_rows(tmp_path / f"{name}.parquet", rows)
        run_eval(
            EvalConfig(tmp_path / f"{name}.parquet", "oracle", server.url, tmp_path / "suite" / name), QUIET
        )
    text = markdown(suite_sheet(tmp_path / "suite", load_suite(tmp_path / "suite")))
    assert "EM 0.750, mean over 2 of the 7 sets" in text and "Not evaluated: triviaqa, popqa" in text
    ours = next(line for line in text.splitlines() if line.startswith("| ours: oracle"))
    search_r1 = next(line for line in text.splitlines() if "base, PPO" in line)
    assert [c.strip() for c in ours.split("|")[2:5]] == [
        "1.000 \\[1.000–1.000\\]",
        ours.split("|")[3].strip(),
        "–",
    ]
    assert "0.480 | 0.432 | 0.431" in search_r1  # beneath ours, in the same columns
    assert "arXiv:2503.09516" in text
    assert text.index("ours: oracle") < text.index("base, PPO")
    assert main(["suite", "card", str(tmp_path / "suite")]) == 0
    assert (tmp_path / "suite" / "suite.html").is_file() and "Search-R1" in capsys.readouterr().out


def test_seven_columns_fit_a_terminal(make_trace: Any) -> None:
    from scout_eval.card_sheet import published_blocks
    from scout_eval.metrics import outcome, summarise
    from scout_eval.sheet import Sheet
    from scout_eval.sheet_text import print_sheet

    found = [outcome(make_trace(i, i % 2, data_source=name)) for i in range(4) for name in NAMES]
    text = io.StringIO()
    sheet = Sheet("t", "h", [], published_blocks(summarise(found), "runs/quickstart/dapo/hf"))
    print_sheet(sheet, Console(file=text, width=80))
    table = text.getvalue().split("avg: of")[0]
    assert all(BENCHMARKS[name].title in table for name in NAMES) and "…" not in table
    numbers = next(line.split() for line in table.splitlines() if "0.480" in line)
    assert numbers[-8:] == ["0.480", "0.638", "0.457", "0.433", "0.382", "0.196", "0.432", "0.431"]
    assert all(len(line) <= 80 for line in table.splitlines())


def test_no_suite_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no finished evaluation"):
        load_suite(tmp_path)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("file", "name", "n"),
    [
        ("nq/search_r1_nq_search_test.parquet", "nq", 3610),
        ("nq/NQ-open.dev.jsonl", "nq", 1800),
        ("hotpotqa/hotpot_dev_500.jsonl", "hotpotqa", 500),
        ("hotpotqa/hotpot_train_100.json", "hotpotqa", 100),
    ],
)
def test_real_files(file: str, name: str, n: int, tmp_path: Path) -> None:
    if not (SHARED / file).is_file():
        pytest.skip("no shared data")
    rows, found, _ = suite_rows(name, tmp_path / "out.parquet", SHARED / file)
    assert len(rows) == found and found >= n
    assert all(row.data_source == name and row.golden_answers for row in rows)
    if "train_100" in file:
        assert {row.extra_info["type"] for row in rows} == {"bridge", "comparison"}
        assert {row.extra_info["level"] for row in rows} <= {"easy", "medium", "hard"}
