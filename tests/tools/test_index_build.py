"""Building an index: every layout, every kind of bad file, and never anything half done."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tool_helpers import scout, write_jsonl

from scout_protocol.errors import UserError
from scout_tools.backends.bm25 import BM25Backend
from scout_tools.corpus import SourceFile
from scout_tools.index import build_index
from scout_tools.index_meta import read_meta

HOTPOT = [
    {
        "_id": "q1",
        "question": "Who?",
        "answer": "x",
        "supporting_facts": [["Alpha", 0]],
        "context": [
            ["Alpha", ["Alpha is a letter.", ' It is Greek [1], "first".']],
            ["Beta", ["Beta follows."]],
        ],
    },
    {"_id": "q2", "question": "What?", "context": [["Beta", ["Beta follows."]], ["東京", ["A city."]]]},
]
HOTPOT_TITLES = ["Alpha", "Beta", "東京"]


def titles(index: Path, query: str, topk: int = 5) -> list[str]:
    (documents,) = BM25Backend(index).search_now([query], topk)
    return [document.title for document in documents]


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_jsonl(tmp_path):
    rows = [
        {"id": 7, "title": "One", "text": "red apple", "url": "http://x/1", "more": 1},
        {"id": "8", "title": "", "text": "pear"},
    ]
    source = write_jsonl(tmp_path / "c.jsonl", rows)
    meta = build_index(tmp_path / "index", [source])
    (hit,) = BM25Backend(tmp_path / "index").search_now(["APPLE"], 3)[0]
    assert (hit.id, hit.title, hit.text, hit.url) == ("7", "One", "red apple", "http://x/1")
    assert meta.n_documents == 2 and meta == read_meta(tmp_path / "index")
    assert meta.sources[0].sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    assert names(tmp_path / "index") == sorted(["meta.json", meta.data])


def test_wiki18_and_gzip(tmp_path):
    rows = [{"id": "0", "contents": '"Ada "Countess" Lovelace"\nShe wrote\na program.'}]
    text = write_jsonl(tmp_path / "w.jsonl", rows).read_bytes()
    packed = tmp_path / "w.jsonl.gz"
    packed.write_bytes(gzip.compress(text))
    meta = build_index(tmp_path / "index", [packed])
    (hit,) = BM25Backend(tmp_path / "index").search_now(["program"], 3)[0]
    assert (hit.title, hit.text) == ('Ada "Countess" Lovelace', "She wrote\na program.")
    assert meta.sources[0].format == "wiki18"
    assert meta.sources[0].sha256 == hashlib.sha256(packed.read_bytes()).hexdigest()


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("lines", [False, True])
def test_hotpot_official(tmp_path, indent, lines):
    path = tmp_path / "h.json"
    if lines:
        write_jsonl(path, HOTPOT)
    else:
        path.write_text("\ufeff \n" + json.dumps(HOTPOT, indent=indent), encoding="utf-8")
    meta = build_index(tmp_path / "index", [path])
    assert meta.n_documents == 3 and meta.n_duplicates == 1
    assert titles(tmp_path / "index", "Greek first letter") == ["Alpha"]
    (hit,) = BM25Backend(tmp_path / "index").search_now(["letter"], 1)[0]
    assert hit.text == 'Alpha is a letter. It is Greek [1], "first".'


def test_hotpot_arrays_larger_than_the_read_size_come_out_whole(tmp_path):
    # items of very different sizes, so that every kind of cut falls somewhere
    items = [{"context": [[f"T{i}", ['é\\"]},{[ ' * (i % 9) ** 6, f"end{i}"]]]} for i in range(18)]
    path = tmp_path / "big.json"
    path.write_text(json.dumps(items, ensure_ascii=False), encoding="utf-8")
    assert path.stat().st_size > 4 << 20
    source = SourceFile(path)
    got = [(p.title, p.text) for p in source.passages()]
    source.close()
    assert got == [(title, "".join(parts)) for item in items for title, parts in item["context"]]


def test_contexts(tmp_path):
    rows = [
        {
            "question_text": "q",
            "contexts": [{"title": "T", "paragraph_text": "blue whale", "is_supporting": True}],
        }
    ]
    build_index(tmp_path / "index", [write_jsonl(tmp_path / "c.jsonl", rows)])
    assert titles(tmp_path / "index", "whale") == ["T"]


def test_duplicates_first_one_stays_unless_asked(tmp_path):
    rows = [{"id": str(i), "title": "Same", "text": "words"} for i in range(3)] + [
        {"id": "9", "title": "Same", "text": "other words"}
    ]
    source = write_jsonl(tmp_path / "c.jsonl", rows)
    meta = build_index(tmp_path / "a", [source])
    assert (meta.n_documents, meta.n_duplicates) == (2, 2)
    (hits,) = BM25Backend(tmp_path / "a").search_now(["words"], 9)
    assert {hit.id for hit in hits} == {"0", "9"}
    assert build_index(tmp_path / "b", [source], keep_duplicates=True).n_documents == 4


def test_the_same_sources_give_the_same_fingerprint_and_order(tmp_path):
    rows = [{"id": str(i), "title": f"T{i}", "text": "tied words here"} for i in range(200)]
    source = write_jsonl(tmp_path / "c.jsonl", rows)
    first, again = (build_index(tmp_path / name, [source]) for name in ("a", "b"))
    assert first.fingerprint == again.fingerprint and first.data != again.data
    expected = [f"T{i}" for i in range(7)]  # equal scores: the order of the source
    assert titles(tmp_path / "a", "tied", 7) == titles(tmp_path / "b", "tied", 7) == expected
    rows[0]["text"] += "!"
    assert build_index(tmp_path / "a", [write_jsonl(source, rows)]).fingerprint != first.fingerprint


def test_several_sources(tmp_path):
    one = write_jsonl(tmp_path / "one.jsonl", [{"id": "0", "title": "A", "text": "apple"}])
    two = tmp_path / "two.json"
    two.write_text(json.dumps(HOTPOT))
    meta = build_index(tmp_path / "index", [one, two])
    assert meta.n_documents == 4 and [s.format for s in meta.sources] == ["jsonl", "hotpot"]


GOOD = '{"id": "1", "title": "t", "text": "x"}\n'


@pytest.mark.parametrize(
    ("content", "where", "words"),
    [
        (GOOD + '{"id": "2", "title": "t"\n', ":2", "not valid JSON"),
        (GOOD + '\n{"id": "2", "title": "t", "txt": "x"}\n', ":3", "`text`"),
        (GOOD + '{"id": "2", "title": 5, "text": "x"}\n', ":2", "title"),
        (GOOD + GOOD.replace('"x"', '"y"'), ":2", "id '1' is used twice"),
        ('{"id": "1", "body": "x"}\n', ":1", "found: id, body"),
        ('{"id": "1", "title": " ", "text": ""}\n', ":1", "without title and text"),
        ('"just a string"\n', ":1", "unknown layout"),
        ("", "", "holds no record"),
        ("[]", "", "holds no record"),
        ('[{"context": [["T", ["s"]]]}, {"context": [["T"', ":item 2", "not valid JSON"),
        ('[{"context": [["T", ["s"]]]}, {"contex": 1}]', ":item 2", "`context`"),
        ('{"contexts": [{"title": "T", "text": "x"}]}\n', ":1", "`paragraph_text`"),
    ],
)
def test_bad_files_are_one_line_with_the_place_and_leave_nothing(tmp_path, content, where, words):
    source = tmp_path / "bad.json"
    source.write_text(content)
    index = tmp_path / "deep" / "er" / "index"
    done = scout("index", "build", source, "--index", index)
    assert done.returncode == 2 and done.stdout == ""
    assert f"{source}{where}: " in done.stderr and words in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1
    assert names(tmp_path) == ["bad.json"]


@pytest.mark.parametrize(
    "raw", [b'{"id":"1","title":"\xff","text":"x"}\n', b'[{"context": [["\xff", ["s"]]]}]']
)
def test_not_utf8(tmp_path, raw):
    (tmp_path / "bad.json").write_bytes(raw)
    with pytest.raises(UserError, match=r"bad\.json:(1|item 1): "):
        build_index(tmp_path / "index", [tmp_path / "bad.json"])


def test_broken_gzip(tmp_path):
    packed = tmp_path / "w.jsonl.gz"
    packed.write_bytes(gzip.compress(GOOD.encode() * 50)[:-20])
    with pytest.raises(UserError, match="cannot be read"):
        build_index(tmp_path / "index", [packed])
    assert names(tmp_path) == ["w.jsonl.gz"]


def test_missing_source_wrong_format_and_folders_that_are_no_index(tmp_path):
    source = write_jsonl(tmp_path / "c.jsonl", [{"id": "1", "title": "t", "text": "x"}])
    with pytest.raises(UserError, match="give an existing file"):
        build_index(tmp_path / "index", [tmp_path / "none.jsonl"])
    with pytest.raises(UserError, match="choose one of auto"):
        build_index(tmp_path / "index", [source], "xml")
    with pytest.raises(UserError, match="not a wiki18 record"):
        build_index(tmp_path / "index", [source], "wiki18")
    with pytest.raises(UserError, match=r"holds c\.jsonl, which is no index"):
        build_index(tmp_path, [source])
    with pytest.raises(UserError, match="cannot be made"):
        build_index(source / "index", [source])
    assert names(tmp_path) == ["c.jsonl"]


@pytest.fixture
def old_index(tmp_path: Path) -> Path:
    """An index that a later build is to replace."""
    old = write_jsonl(tmp_path / "old.jsonl", [{"id": "1", "title": "Old", "text": "steady words"}])
    build_index(tmp_path / "index", [old])
    return tmp_path / "index"


def test_replacing_an_index_under_an_open_reader(old_index, tmp_path):
    reader = BM25Backend(old_index)
    build_index(
        old_index,
        [write_jsonl(tmp_path / "new.jsonl", [{"id": "2", "title": "New", "text": "steady words"}])],
    )
    assert titles(old_index, "steady") == ["New"]
    assert [d.title for d in reader.search_now(["steady"], 3)[0]] == ["Old"]
    assert len(names(old_index)) == 2


def test_a_failed_build_leaves_the_old_index(old_index, tmp_path):
    before = names(old_index)
    bad = tmp_path / "bad.jsonl"
    bad.write_text(GOOD * 1 + "{")
    with pytest.raises(UserError):
        build_index(old_index, [bad])
    assert names(old_index) == before and titles(old_index, "steady") == ["Old"]


def start_build_from_pipe(index: Path, tmp_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A build that has read some passages and now waits for more: (process, write end)."""
    fifo = tmp_path / "fifo.jsonl"
    os.mkfifo(fifo)
    command = [sys.executable, "-m", "scout_cli.main", "index", "build", str(fifo), "--index", str(index)]
    # In the background of a shell SIGINT is ignored, and children inherit that.
    build = subprocess.Popen(
        command, stderr=subprocess.PIPE, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )
    handle = os.open(fifo, os.O_WRONLY)  # returns once the build has opened the other end
    rows = "".join(
        json.dumps({"id": str(i), "title": f"N{i}", "text": "steady words"}) + "\n" for i in range(20_000)
    )
    # more than a pipe holds: when this returns, the build has taken in most of it
    os.set_blocking(handle, True)
    sent = rows.encode()
    while sent:
        sent = sent[os.write(handle, sent) :]
    return build, handle


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_build_killed_in_the_middle_leaves_the_old_index(old_index, tmp_path, number):
    before = names(old_index)
    build, handle = start_build_from_pipe(old_index, tmp_path)
    assert len(names(old_index)) == len(before) + 1  # it was in the middle
    busy = scout("index", "build", tmp_path / "old.jsonl", "--index", old_index)
    assert busy.returncode == 2 and "another build runs there" in busy.stderr
    build.send_signal(number)
    os.close(handle)
    _, errors = build.communicate(timeout=30)
    assert build.returncode != 0
    assert titles(old_index, "steady") == ["Old"]
    if number != signal.SIGKILL:
        assert names(old_index) == before and b"Traceback" not in errors
    build_index(old_index, [tmp_path / "old.jsonl"])  # also sweeps what a kill -9 left
    assert len(names(old_index)) == 2 and titles(old_index, "steady") == ["Old"]


def test_a_disk_that_refuses_leaves_the_old_index(old_index, tmp_path):
    before = names(old_index)
    rows = [
        {"id": str(i), "title": f"T{i}", "text": f"{hashlib.sha256(str(i).encode()).hexdigest()} " * 4}
        for i in range(3000)
    ]
    source = write_jsonl(tmp_path / "big.jsonl", rows)

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = scout("index", "build", source, "--index", old_index, preexec_fn=small_files)
    assert done.returncode == 2, done.stderr
    line = done.stderr.strip().splitlines()[-1]
    assert "cannot be written" in line and "make room or choose another folder" in line
    assert names(old_index) == before and titles(old_index, "steady") == ["Old"]


def test_cli_info_and_search(index_dir):
    done = scout("index", "info", "--index", index_dir)
    assert done.returncode == 0 and "passages     64" in done.stdout and "corpus.jsonl" in done.stdout
    done = scout("index", "search", "analytical engine", "--index", index_dir, "--topk", 1)
    assert done.stdout.split("\n")[0].endswith("Charles Babbage  [b]")
    assert scout("index", "search", " ", "--index", index_dir).returncode == 2


@pytest.mark.parametrize("topk", [0, -1])
def test_no_results_asked_for_is_refused(index_dir, topk):
    done = scout("index", "search", "analytical", "--index", index_dir, "--topk", topk)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"scout index: --topk: {topk}: must be at least 1\n"


def test_passages_that_cannot_be_read_are_one_line_that_says_rebuild(index_dir, tmp_path):
    damaged = shutil.copytree(index_dir, tmp_path / "damaged")
    (store,) = damaged.glob("data-*/*.store")
    content = bytearray(store.read_bytes())
    content[8 : len(content) // 2] = b"\xff" * (len(content) // 2 - 8)
    store.write_bytes(content)
    done = scout("index", "search", "analytical engine", "--index", damaged)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "is damaged" in line and f"scout index build --index {damaged}" in line
