"""An index whose files are no longer what the build wrote: an error, never other answers."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from tool_helpers import Server, scout, write_jsonl
from wiki_helpers import wait_steps

from scout_protocol.errors import UserError
from scout_tools.index import build_index
from scout_tools.index_files import DamagedError, IndexFiles, describe
from scout_tools.index_meta import read_meta
from scout_tools.index_open import OpenIndex


@pytest.fixture
def index(index_dir, tmp_path) -> Path:
    return Path(shutil.copytree(index_dir, tmp_path / "index"))


def postings(index: Path) -> Path:
    """tantivy's posting lists: with other bytes in them it finds other passages, without a word."""
    (path,) = index.glob("data-*/*.idx")
    return path


def overwrite(path: Path, content: bytes) -> None:
    """In place, as a stray write does: who has the file mapped sees it at once."""
    with path.open("r+b") as file:
        file.write(content)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    overwrite(path, bytes(content))


def test_one_bit_in_any_file_is_told(index_dir, tmp_path):
    names = [file.name for file in read_meta(index_dir).files]
    assert {Path(name).suffix for name in names} >= {".idx", ".term", ".store", ".fieldnorm", ".json"}
    for number, name in enumerate(names):
        copy = Path(shutil.copytree(index_dir, tmp_path / str(number)))
        (path,) = copy.glob(f"data-*/{name}")
        flip(path, path.stat().st_size // 2)
        with pytest.raises(UserError, match="is damaged") as found:
            OpenIndex(copy)
        assert f"{name} is not what was written" in str(found.value) and "scout index build" in str(
            found.value
        )


def test_missing_and_cut_files(index, tmp_path):
    data = postings(index).parent
    files = describe(data)
    IndexFiles(data, files).verify()
    os.truncate(postings(index), 10)
    with pytest.raises(DamagedError, match="has 10 bytes"):
        IndexFiles(data, files)
    postings(index).unlink()
    with pytest.raises(DamagedError, match="No such file"):
        IndexFiles(data, files)


def test_damage_is_one_line_before_the_start(index):
    done = scout("index", "verify", "--index", index)
    assert done.returncode == 0 and "MB as they were written" in done.stdout, done.stderr
    flip(postings(index), 20)
    for command in (("index", "verify"), ("index", "search", "engine"), ("serve", "--port", 0)):
        done = scout(*command, "--index", index)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
        assert f"{postings(index).name} is not what was written" in done.stderr


def until(server: Server, ready: int) -> None:
    for _ in wait_steps(15.0):
        try:
            if server.get("/ready")[0] == ready:
                return
        except OSError:
            continue  # a page that is no longer in the file kills its worker; another one is started
    raise AssertionError(f"/ready did not become {ready}")


@pytest.mark.parametrize("how", ["overwritten", "cut"])
def test_damage_while_it_is_served_is_an_outage_until_it_is_mended(index, serve, how):
    server = serve("--index", index, "--workers", 1, "--cache-mb", 0)
    right = server.act("<search>vault7</search>")["observations"]
    path, content = postings(index), postings(index).read_bytes()
    if how == "cut":
        os.truncate(path, 0)
    else:
        overwrite(path, bytes(byte ^ 0x55 for byte in content))
    until(server, 503)
    reply = server.act("<search>vault7</search>", "<answer>x</answer>")
    assert reply["observations"][0]["error_kind"] == "index_unreadable" and reply["valids"] == [False, True]
    overwrite(path, content)
    until(server, 200)
    assert server.act("<search>vault7</search>")["observations"] == right


def test_a_replaced_worker_serves_the_same_index_as_the_others(index, serve, tmp_path):
    server = serve("--index", index, "--workers", 2, "--cache-mb", 0)
    before = server.act("<search>engine</search>")["observations"]
    other = write_jsonl(tmp_path / "new.jsonl", [{"id": "1", "title": "New", "text": "another engine"}])
    build_index(index, [other])
    shutil.rmtree(index)
    pid = server.process.pid
    for worker in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        os.kill(int(worker), signal.SIGKILL)
    for _ in range(10):
        assert server.act("<search>engine</search>")["observations"] == before
