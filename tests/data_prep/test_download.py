"""Downloads against a hub of our own on this machine: resumed after a kill, checked, mirrored."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scout_data import download
from scout_data.cli import main
from scout_data.download import Remote
from scout_protocol.errors import UserError

BODY = bytes(range(256)) * 8192  # 2 MiB
SHA256 = hashlib.sha256(BODY).hexdigest()


class Hub(ThreadingHTTPServer):
    """Answers as the hub does for one large file, and remembers what it was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.ranges: list[str | None] = []
        self.cut_after: list[int] = []  # bytes after which the next answers break off
        self.status = 200
        self.etag = SHA256
        self.pause_s = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.send_response(self.server.status)
        self.send_header("X-Repo-Commit", "c" * 40)
        self.send_header("X-Linked-Etag", f'"{self.server.etag}"')
        self.send_header("X-Linked-Size", str(len(BODY)))
        self.send_header("ETag", '"x"')
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()

    def do_GET(self) -> None:
        if self.path.startswith("/api/"):  # the hub's client asks for more than files
            self.send_error(404)
            return
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(BODY) - start))
        self.end_headers()
        stop = start + self.server.cut_after.pop(0) if self.server.cut_after else len(BODY)
        for at in range(start, min(stop, len(BODY)), 65536):
            self.wfile.write(BODY[at : min(at + 65536, stop)])
            time.sleep(self.server.pause_s)
        if stop < len(BODY):
            self.close_connection = True


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_hubs_file_through_a_mirror(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    # other rooms' tests run offline; the variable is read once, when the package is first imported
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert main(["fetch", "nq_hotpotqa_train", "--out", str(tmp_path)]) == 0
    target = tmp_path / "nq_hotpotqa_train.parquet"
    assert target.read_bytes() == BODY
    assert f"sha256 {SHA256}, checked against the server's SHA-256" in capsys.readouterr().out
    facts = json.loads((tmp_path / "nq_hotpotqa_train.parquet.source.json").read_text())
    assert (facts["revision"], facts["sha256"], facts["bytes"]) == ("c" * 40, SHA256, len(BODY))
    assert main(["fetch", "nq_hotpotqa_train", "--out", str(tmp_path)]) == 0
    assert hub.ranges == [None]  # it is there: not fetched again
    target.write_bytes(b"damaged")
    assert main(["fetch", "nq_hotpotqa_train", "--out", str(tmp_path)]) == 0
    assert target.read_bytes() == BODY


def test_a_cut_connection_goes_on_where_it_was(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [700_000, 0, 300_001]
    target = tmp_path / "x.bin"
    found = download.download(Remote(f"{hub.url}/x", len(BODY), SHA256), target, wait_s=0.01)
    assert (found, target.read_bytes()) == (SHA256, BODY)
    assert hub.ranges == [None, "bytes=700000-", "bytes=700000-", "bytes=1000001-"]
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_a_killed_process_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    hub.pause_s = 0.05
    command = (
        "import sys; from pathlib import Path; from scout_data.download import *; "
        "download(Remote(sys.argv[1]), Path(sys.argv[2]))"
    )
    target = tmp_path / "x.bin"
    part = tmp_path / "x.bin.part"
    process = subprocess.Popen([sys.executable, "-c", command, f"{hub.url}/x", str(target)], env=os.environ)
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    have = part.stat().st_size
    assert 0 < have < len(BODY) and not target.exists()
    hub.pause_s = 0.0
    download.download(Remote(f"{hub.url}/x"), target)  # nobody says how long it is
    assert target.read_bytes() == BODY
    assert hub.ranges[-1] == f"bytes={have}-"


def test_a_server_that_stays_away_keeps_what_came(hub: Hub, tmp_path: Path) -> None:
    hub.cut_after = [500_000] + [0] * 9
    remote = Remote(f"{hub.url}/x", len(BODY), SHA256)
    with pytest.raises(UserError, match=r"500,000 bytes are kept in x\.bin\.part: run the same command"):
        download.download(remote, tmp_path / "x.bin", retries=2, wait_s=0.01)
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin.part"]
    hub.cut_after = []
    assert download.download(remote, tmp_path / "x.bin") == SHA256


def test_other_bytes_are_removed(hub: Hub, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"should be {'0' * 64}: it was removed"):
        download.download(Remote(f"{hub.url}/x"), tmp_path / "x.bin", sha256="0" * 64)
    assert list(tmp_path.iterdir()) == []


def test_a_hub_without_the_file_or_none_at_all(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    argv = ["fetch", "nq_hotpotqa_train", "--out", str(tmp_path)]
    hub.status = 404
    with pytest.raises(UserError) as caught:
        main(argv)
    assert hub.url in str(caught.value) and "\n" not in str(caught.value)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="set HF_ENDPOINT to a mirror, or give a local file"):
        main(argv)
    with pytest.raises(UserError, match="choose one of nq_hotpotqa_train"):
        main(["fetch", "nothing"])
    assert list(tmp_path.iterdir()) == []


def test_the_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(download.SOURCES)
