"""A tool server that asks for a token: training sends it, and says so before it starts where it is wrong."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scout_protocol.errors import UserError
from scout_train.checks import check_tools

TOKEN = "a-made-up-token"


@pytest.fixture
def guarded() -> Iterator[str]:
    """The URL of a server that answers 401 to everything but /ready without the token."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _reply(self) -> None:
            allowed = self.path == "/ready" or self.headers["Authorization"] == f"Bearer {TOKEN}"
            lists = {"observations": ["page"], "dones": [False], "valids": [True], "processing_time_ms": 0.1}
            raw = json.dumps(lists).encode()
            self.send_response(200 if allowed else 401)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = _reply

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._reply()

        def log_message(self, *_args: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_token_is_checked_before_the_run(guarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", TOKEN)
    monkeypatch.setenv("WRONG", "another-token")
    check_tools(guarded, "MY_TOKEN")
    for name in ("", "WRONG"):
        with pytest.raises(UserError, match="--tools-token-env"):
            check_tools(guarded, name)


def test_the_rollouts_send_it(
    guarded: str, compose: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("verl")
    from scout_train.agent_loop import Surroundings

    monkeypatch.setenv("MY_TOKEN", TOKEN)

    async def kind(*more: str) -> str:
        run = ["scout.run.stage=test", "scout.run.model=m", f"scout.run.dir={tmp_path}"]
        around = Surroundings(compose("grpo", f"scout.tools.url={guarded}", *run, *more))
        await around.open()
        try:
            return (await around.tools.call("t", "<search>q</search>")).error_kind
        finally:
            await around.close()

    assert asyncio.run(kind()) == "http_401"
    assert asyncio.run(kind("scout.tools.token_env=MY_TOKEN")) == ""
