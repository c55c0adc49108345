"""GET /openapi.json and /docs, made from the wire types themselves, so that they agree with them."""

from __future__ import annotations

import html
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from scout_protocol.wire import ErrorBody, ObservationRequest, ObservationResponse, RetrieveRequest

_ERRORS = {
    "400": "the body is not a request; `field` names the part that is wrong",
    "401": "needs the bearer token",
    "408": "the request did not arrive in time",
    "413": "the request, or its answer, is larger than allowed",
    "503": "too many searches wait, or the backend is unavailable; Retry-After says when to try again",
}
_PAGES = {
    "/health": ("facts and counts of the worker that answers", "application/json"),
    "/ready": ("200 only while a search would be answered, else 503", "application/json"),
    "/metrics": ("counters of all workers for Prometheus", "text/plain"),
    "/openapi.json": ("this description", "application/json"),
    "/docs": ("this description as a page", "text/html"),
}


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 description of the server."""
    types = (ObservationRequest, ObservationResponse, RetrieveRequest, ErrorBody)
    refs, schemas = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    request, response, retrieve, error = refs
    found = {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"type": "array", "items": {"type": "object"}}}},
    }
    paths: dict[str, Any] = {
        "/get_observation": {
            "post": _post("one observation per action (verl-tool's protocol)", request, response, error)
        },
        "/retrieve": {"post": _post("documents per query (Search-R1's retriever)", retrieve, found, error)},
    }
    for path, (summary, media) in _PAGES.items():
        paths[path] = {
            "get": {"summary": summary, "responses": {"200": {"description": "ok", "content": {media: {}}}}}
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Scout tool server", "version": "1"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _post(summary: str, request: Any, response: Any, error: Any) -> dict[str, Any]:
    def content(schema: Any) -> dict[str, Any]:
        return {"application/json": {"schema": schema}}

    responses = {"200": {"description": "the answer", "content": content(response)}}
    responses |= {code: {"description": why, "content": content(error)} for code, why in _ERRORS.items()}
    body = {"required": True, "content": content(request)}
    return {"summary": summary, "requestBody": body, "responses": responses}


async def openapi_json(request: Request) -> Response:
    """The description as JSON."""
    return Response(msgspec.json.encode(document()), media_type="application/json")


async def docs_page(request: Request) -> HTMLResponse:
    """The description as one page that needs no network: training nodes have none."""
    return HTMLResponse(_page())


@cache
def _page() -> str:
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Scout tool server</title><style>"
        "body{font:15px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
        "pre{background:#8881;padding:.8rem;overflow:auto}code{font-family:ui-monospace,monospace}"
        "td{padding:.1rem .8rem .1rem 0;vertical-align:top}</style><h1>Scout tool server</h1>"
    ]
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            parts.append(
                f"<h2><code>{method.upper()} {path}</code></h2><p>{html.escape(operation['summary'])}</p>"
            )
            if "requestBody" in operation:
                rows = (
                    f"<tr><td>{code}<td>{html.escape(r['description'])}"
                    for code, r in operation["responses"].items()
                )
                parts.append(f"<table>{''.join(rows)}</table>")
    for name, schema in document()["components"]["schemas"].items():
        shown = msgspec.json.format(msgspec.json.encode(schema), indent=2).decode()
        parts.append(f"<h3>{name}</h3><pre>{html.escape(shown)}</pre>")
    return "".join(parts)
