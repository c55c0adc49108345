"""An outage of the backend is an outcome of its own: flagged, counted, never an empty observation."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

from scout_protocol.observation import Document
from scout_tools.app import ToolApp
from scout_tools.backends.base import BackendError
from scout_tools.settings import Settings


class Shaky:
    """A backend whose answer depends on the query, as a real upstream's does."""

    name = "shaky"
    fingerprint = "shaky:1"

    async def search(self, queries: Sequence[str], topk: int) -> list[list[Document]]:
        found = []
        for query in queries:
            if "limited" in query:
                raise BackendError("rate_limited", "429 from upstream")
            if "bug" in query:
                raise KeyError("secret detail")
            if "slow" in query:
                await asyncio.Event().wait()
            found.append([Document("1", "Title", f"text for {query}")])
        return found

    async def ready(self) -> bool:
        return False

    async def close(self) -> None:
        return None


def call(app: ToolApp, method: str, path: str, message: Any = None) -> tuple[int, Any]:
    """One request straight into the ASGI application."""
    body = b"" if message is None else json.dumps(message).encode()
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [],
        "query_string": b"",
        "root_path": "",
    }
    asyncio.run(app(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.fixture
def app(tmp_path):
    return ToolApp(Settings(index=tmp_path, timeout_s=0.2), Shaky())


def test_each_outage_marks_exactly_its_own_action(app):
    queries = ["fine", "limited", "bug", "slow", "also fine"]
    message = {"trajectory_ids": list("abcde"), "actions": [f"<search>{q}</search>" for q in queries]}
    status, reply = call(app, "POST", "/get_observation", message)
    assert status == 200
    assert reply["valids"] == [True, False, False, False, True] and reply["dones"] == [False] * 5
    kinds = [o.get("error_kind") if isinstance(o, dict) else None for o in reply["observations"]]
    assert kinds == [None, "rate_limited", "internal:KeyError", "timeout", None]
    for failed in reply["observations"][1:4]:
        assert failed["infra_error"] == 1.0 and "unavailable" in failed["obs"]
        assert failed["obs"].startswith("\n\n<information>") and "secret" not in json.dumps(failed)
    _, health = call(app, "GET", "/health")
    assert health["infra_errors"] == {"rate_limited": 1, "internal:KeyError": 1, "timeout": 1}


def test_retrieve_has_no_place_for_an_outage_so_it_is_a_503(app):
    status, reply = call(app, "POST", "/retrieve", {"queries": ["fine", "limited"]})
    assert status == 503 and reply["field"] == "backend" and "rate_limited" in reply["error"]
    assert call(app, "POST", "/retrieve", {"queries": ["fine"]})[0] == 200


def test_not_ready_is_a_503(app):
    assert call(app, "GET", "/ready") == (503, {"ready": False, "backend": "shaky"})


def test_an_index_that_rots_under_a_running_server(index_dir, serve, tmp_path):
    copy = tmp_path / "index"
    shutil.copytree(index_dir, copy)
    server = serve("--index", copy, "--workers", 1)
    (store,) = copy.glob("data-*/*.store")
    with store.open("r+b") as file:  # in place: the worker has these very pages mapped
        file.write(b"\xff" * (store.stat().st_size - 200))
    reply = server.act("<search>vault55</search>", "<answer>x</answer>", "<search>xyzzy</search>")
    assert reply["observations"][0]["error_kind"] == "index_unreadable"
    assert reply["observations"][0]["infra_error"] == 1.0
    assert reply["valids"] == [False, True, False]  # who knows whether nothing would have been found?
    assert server.get("/ready")[0] == 503
    _, health = server.get("/health")
    assert health["infra_errors"] == {"index_unreadable": 2}
