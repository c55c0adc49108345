"""The tool server seen by an evaluation: its facts for the fingerprint, and searches outside an episode."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from scout_agent.client import HttpTools
from scout_protocol.errors import UserError
from scout_protocol.observation import STYLES, Document
from scout_protocol.wire import RetrieveRequest, encode

# Facts of GET /health that change what a search returns; the others (pid, counters) differ between runs.
FACTS = ("backend", "fingerprint", "topk", "style", "dialect", "max_chars")
DEFAULT_TOPK = 3  # where the server does not say
POOL_QUERIES, POOL_TOPK = 48, 10
_WORD = re.compile(r"\w{3,}")
# No proxy of the environment may stand between an evaluation and its own server.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def tools_alive(url: str) -> None:
    """Make sure that something listens at the URL before a model is loaded.

    Raises:
        UserError: nothing does.
    """
    HttpTools(url)  # checks the form
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((str(parts.hostname), port), timeout=5).close()
    except OSError as error:
        raise UserError("tools", url, f"nothing answers there ({error}): start `make serve-tools`") from error


def server_facts(url: str, timeout_s: float = 10.0) -> dict[str, Any]:
    """What retriever answers there; empty where the server does not say (verl-tool's has no such route)."""
    try:
        with _OPENER.open(f"{url.rstrip('/')}/health", timeout=timeout_s) as response:
            found: Any = json.load(response)
    except (OSError, ValueError, http.client.HTTPException):
        return {}
    return {key: found[key] for key in FACTS if key in found} if isinstance(found, dict) else {}


def retrieve(
    url: str, queries: Sequence[str], topk: int, timeout_s: float = 60.0, token: str = ""
) -> list[list[Document]]:
    """The passages for each query, as POST /retrieve gives them.

    Raises:
        UserError: the server has no such route, is not there, or its backend failed.
    """
    body = encode(RetrieveRequest(list(queries), topk, return_scores=False))
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(  # noqa: S310  the scheme was checked by HttpTools
        f"{url.rstrip('/')}/retrieve", body, headers
    )
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            result = msgspec.json.decode(response.read())["result"]
        found = [[_document(item) for item in items] for items in result]
    except urllib.error.HTTPError as error:
        raise UserError(
            "tools", url, f"POST /retrieve answered {error.code}: is it a Scout server that works?"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        raise UserError("tools", url, f"POST /retrieve failed ({error}): check the tool server") from error
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise UserError("tools", url, f"POST /retrieve gave something else ({error})") from error
    if len(found) != len(queries):
        raise UserError("tools", url, f"POST /retrieve gave {len(found)} results for {len(queries)} queries")
    return found


def _document(item: dict[str, Any]) -> Document:
    """A document of Search-R1's shape: its first line is the title in quotes."""
    inner = item.get("document", item)
    title, _, text = str(inner["contents"]).partition("\n")
    return Document(str(inner.get("id", "")), title.strip().strip('"'), text)


def random_pool(url: str, questions: Sequence[str], seed: int, token: str = "") -> list[Document]:
    """Passages for the control "random": what single words of the questions happen to find.

    Raises:
        UserError: as `retrieve`.
    """
    words = sorted({word.lower() for question in questions for word in _WORD.findall(question)})
    drawn = random.Random(f"pool\0{seed}").sample(words, min(POOL_QUERIES, len(words)))
    found = retrieve(url, drawn, POOL_TOPK, token=token) if drawn else []
    unique = {(d.title, d.text): d for documents in found for d in documents}
    return [unique[key] for key in sorted(unique)]


def style_of(facts: dict[str, Any]) -> str:
    """The style in which the server renders observations; Search-R1's where it does not say."""
    style = str(facts.get("style", STYLES[0]))
    return style if style in STYLES else STYLES[0]
