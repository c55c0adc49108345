"""The MediaWiki API as this gateway uses it: what is asked in one call, and what the answer says.

No input or output happens here. Documented at mediawiki.org: API:Query, API:Search, Extension:TextExtracts.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_PAGES = 20  # extracts with exintro are given for at most this many pages of one call

_ALWAYS = {
    "action": "query",
    "format": "json",
    "formatversion": "2",
    "redirects": "1",
    "prop": "extracts|info|pageprops",
    "exintro": "1",
    "explaintext": "1",
    "exlimit": "max",
    "inprop": "url",
    "ppprop": "disambiguation",
    "maxlag": "5",
}


class Page(msgspec.Struct, frozen=True):
    """One page of an answer, in the order of relevance."""

    id: str
    title: str
    url: str
    extract: str
    is_disambiguation: bool


class Answer(msgspec.Struct, frozen=True):
    """Pages, and the spelling that the search engine would rather have had ("" if none)."""

    pages: list[Page]
    suggestion: str = ""


class AnswerError(ValueError):
    """JSON, but not what the API answers."""


def search_params(query: str, limit: int) -> dict[str, str]:
    """One call: search, and of every hit the introduction, the URL, and whether it is a disambiguation."""
    return {
        **_ALWAYS,
        "generator": "search",
        "gsrsearch": query,
        "gsrlimit": str(min(limit, MAX_PAGES)),
        "gsrnamespace": "0",
        "gsrinfo": "suggestion",
    }


def title_params(title: str) -> dict[str, str]:
    """The same of one page by its title."""
    return {**_ALWAYS, "titles": title}


def links_params(title: str) -> dict[str, str]:
    """The same of the pages that a page links to (the API gives them by title, not by place)."""
    return {
        **_ALWAYS,
        "generator": "links",
        "titles": title,
        "gplnamespace": "0",
        "gpllimit": str(MAX_PAGES),
    }


def api_error(body: dict[str, Any]) -> tuple[str, str] | None:
    """(code, info) if the API says inside a 200 that it did not do it."""
    error = body.get("error")
    if error is None and isinstance(body.get("errors"), list) and body["errors"]:
        error = body["errors"][0]
    if error is None:
        return None
    if not isinstance(error, dict):
        return "", str(error)[:200]
    return str(error.get("code", "")), str(error.get("info", error.get("text", "")))[:200]


def read_answer(body: dict[str, Any]) -> Answer:
    """The pages of an answer, best first.

    Raises:
        AnswerError: the body has another shape.
    """
    query = body.get("query")
    if query is None:
        # A search without hits has no "query" at all; anything else without it is not an answer.
        if "batchcomplete" in body:
            return Answer([])
        raise AnswerError("neither query nor batchcomplete")
    try:
        info = query.get("searchinfo", {})
        suggestion = str(info.get("suggestion", "")) if isinstance(info, dict) else ""
        found = query.get("pages", [])
        rows = list(found.values()) if isinstance(found, dict) else list(found)
        rows.sort(key=lambda row: (row.get("index", 1 << 30), row.get("title", "")))
        return Answer([page for row in rows if (page := _page(row)) is not None], suggestion)
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise AnswerError(f"pages of another shape ({error})") from error


def _page(row: dict[str, Any]) -> Page | None:
    if "missing" in row or "invalid" in row or "special" in row:
        return None
    url = str(row.get("fullurl", ""))
    return Page(
        id=str(row["pageid"]),
        title=str(row["title"]),
        url="https://" + url[len("http://") :] if url.startswith("http://") else url,
        extract=str(row.get("extract", "")),
        is_disambiguation="disambiguation" in row.get("pageprops", {}),
    )
