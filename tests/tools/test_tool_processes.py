"""The server as a set of processes: start, death, replacement, stop, and what goes wrong before."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tool_helpers import scout


def search(query: str) -> str:
    return f"<search>{query}</search>"


def children(pid: int) -> set[int]:
    tasks = Path(f"/proc/{pid}/task")
    return {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()}


def wait_gone(pids: set[int], seconds: float = 15.0) -> None:
    """Block until all of these processes have ended (each is readable through its pidfd then)."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], seconds)[0], f"process {pid} is still there"
        finally:
            os.close(handle)


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")


def test_importing_the_app_brings_nothing_heavy():
    code = (
        "import sys, scout_tools.app, scout_tools.serve, scout_tools.worker, scout_tools.index\n"
        "heavy = {'torch', 'ray', 'verl', 'transformers', 'fastapi', 'pydantic', 'numpy', 'pyarrow'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_ready_file_and_stop(index_dir, serve, tmp_path):
    ready = tmp_path / "sub" / "ready.json"
    server = serve("--index", index_dir, "--workers", 2, "--ready-file", ready)
    assert json.loads(ready.read_text()) == {"url": server.url, "pid": server.process.pid}
    seconds = float(server.ready_line.split("workers, ")[1].split(" s")[0])
    assert seconds < 10  # aim 2 s on an idle machine; the test machine is not idle
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=15) == 0
    assert not ready.exists() and list(tmp_path.rglob("*ready*")) == []


@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_the_supervisor(index_dir, serve, number):
    server = serve("--index", index_dir, "--workers", 3)
    workers = children(server.process.pid)
    assert len(workers) == 3
    server.process.send_signal(number)
    server.process.wait(timeout=15)
    wait_gone(workers)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), timeout=2).close()


@needs_proc
def test_a_killed_worker_is_replaced_and_no_new_request_is_refused(index_dir, serve):
    server = serve("--index", index_dir, "--workers", 2)
    for _ in range(3):
        before = children(server.process.pid)
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        wait_gone({victim})
        for _ in range(20):  # connections for the dead one wait in its socket until the next one is there
            assert server.act(search("engine"))["valids"] == [True]
        after = children(server.process.pid)
        assert len(after) == 2 and victim not in after


@needs_proc
def test_stops_with_the_process_it_was_told_to_watch(index_dir, serve):
    watched = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    server = serve("--index", index_dir, "--workers", 1, "--exit-with", watched.pid)
    assert server.act(search("engine"))["valids"] == [True]
    watched.kill()  # not reaped: a zombie must count as ended
    assert server.process.wait(timeout=15) == 0
    watched.communicate()


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1 and "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_port_in_use_by_a_stranger(index_dir):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        line = one_line(scout("serve", "--index", index_dir, "--port", port))
    assert f"--port: {port}: is in use" in line


def test_port_in_use_by_another_scout(index_dir, server):
    assert "is in use" in one_line(scout("serve", "--index", index_dir, "--port", server.port))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "0"], "--workers"),
        (["--topk", "0"], "--topk"),
        (["--port", "70000"], "--port"),
        (["--dialect", "klingon"], "choose one of react, search-r1"),
        (["--style", "x"], "choose one of search_r1, wiki"),
        (["--timeout-s", "nan"], "--timeout-s"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--ready-file", "/proc/nope/x"], "--ready-file"),
        (["--exit-with", "999999999"], "--exit-with"),
    ],
)
def test_bad_options_are_one_line(index_dir, options, words):
    assert words in one_line(scout("serve", "--index", index_dir, "--port", "0", *options))


def test_index_absent(tmp_path):
    line = one_line(scout("serve", "--index", tmp_path / "none", "--port", 0))
    assert "no index there" in line and "scout index build --index" in line


def test_index_of_another_version(tmp_path):
    (tmp_path / "meta.json").write_text('{"format_version": 99, "shape": "unknown"}')
    line = one_line(scout("serve", "--index", tmp_path, "--port", 0))
    assert "format version 99" in line and "rebuild it: scout index build" in line


def test_index_damaged(index_dir, tmp_path):
    import shutil

    copy = tmp_path / "index"
    shutil.copytree(index_dir, copy)
    (data,) = copy.glob("data-*")
    for path in data.glob("*.term"):
        path.write_bytes(b"\0" * 10)
    line = one_line(scout("serve", "--index", copy, "--port", 0))
    assert "is damaged" in line and "rebuild it" in line
    shutil.rmtree(data)
    assert "is missing" in one_line(scout("serve", "--index", copy, "--port", 0))


def test_help_names_every_option():
    done = scout("serve", "--help")
    assert done.returncode == 0
    for option in (
        "--host",
        "--port",
        "--workers",
        "--index",
        "--topk",
        "--dialect",
        "--ready-file",
        "--exit-with",
    ):
        assert option in done.stdout
