"""Text in and out of Wikipedia: what a query becomes, and how an extract becomes readable."""

from __future__ import annotations

import html
import re
import unicodedata

MAX_QUERY_CHARS = 300  # CirrusSearch refuses longer ones
ELLIPSIS = "…"

# CirrusSearch syntax: fields (insource:/regex/ is expensive), phrases, wildcards, fuzziness, brackets.
_SYNTAX = re.compile(r'[":~*?\\|<>{}\[\]()^]')
_NEGATION = re.compile(r"(?<!\S)[-!+]+")

_TAGS = (
    "a|abbr|b|bdi|big|blockquote|br|center|cite|code|dd|del|dfn|div|dl|dt|em|figure|figcaption|font|h[1-6]|hr|i|"
    "img|ins|kbd|li|link|mark|math|meta|noscript|ol|p|pre|q|ref|rp|rt|ruby|s|samp|small|span|strong|sub|sup|"
    "table|tbody|td|th|thead|tr|tt|u|ul|var|wbr"
)
_DROPPED = re.compile(r"<(style|script|math|ref)\b[^<>]*>.*?</\1\s*>|<!--.*?-->", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(rf"</?(?:{_TAGS})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_HEADING = re.compile(r"^\s*==+[^=\n]+==+\s*$", re.MULTILINE)

_IPA_CHARS = "ɐ-ʯˈˌːəɪʊɛɔæʌθðŋʃʒɑɒɡ\u0361"
_IPA = re.compile(
    rf"(?:\bIPA\b\s*:?\s*)?(?:/(?!/)[^/\n]{{0,80}}?[{_IPA_CHARS}][^/\n]{{0,80}}/"
    rf"|\[[^\[\]\n]{{0,80}}?[{_IPA_CHARS}][^\[\]\n]{{0,80}}\])"
)
_SPEECH = re.compile(
    r"(?<!\w)(?:pronounced|pronunciation|audio speaker icon|Aussprache|ausgesprochen|prononciation|prononcé)"
    r"(?!\w)|\(listen\)|^\s*listen\s*$|ⓘ|🔊"
)
_NAMED_IPA = re.compile(rf",?\s*\bIPA\b\s*(?:\([^()]*\))?\s*:?\s*/[^/\n]*[{_IPA_CHARS}][^/\n]*/")
_EMPTY = re.compile(r"^[\s;,:.\-–—/'\"*]*(?:(?:UK|US|also|or|and)\b[\s;,:]*)*$")
_YEAR = re.compile(r"\d{3,4}|\b(?:born|died|reigned|c\.)")


def normalise_query(query: str) -> str:
    """The query as it is sent and as it is cached: one spelling for what the search engine cannot tell apart.

    NFKC, lower case, single spaces, no search syntax, at most 300 characters. May be empty.
    """
    text = unicodedata.normalize("NFKC", query).lower()
    text = _NEGATION.sub(" ", _SYNTAX.sub(" ", text))
    text = " ".join(text.split())
    if len(text) > MAX_QUERY_CHARS:
        cut = text[: MAX_QUERY_CHARS + 1].rfind(" ")
        text = text[: cut if cut > 0 else MAX_QUERY_CHARS]
    return text if any(c.isalnum() for c in text) else ""


def clean(text: str) -> str:
    """Plain sentences: no HTML, no formula source, no headings, no pronunciation in brackets."""
    text = _TAG.sub("", _DROPPED.sub("", text))
    text = html.unescape(text).replace("\u200b", "").replace("\u200e", "")
    text = _without_formulas(text)
    text = _HEADING.sub("", text)
    text = _without_speech(text)
    text = " ".join(text.split())
    text = re.sub(r"\(\s*[;,:]?\s*", "(", text)
    text = re.sub(r"\s*[;,:]?\s*\)", ")", text).replace("()", "")
    text = re.sub(r"\s+([,.;:!?])(?=\s|$)", r"\1", text)
    text = re.sub(r",(?:\s*,)+", ",", text)
    return " ".join(text.split())


def shorten(text: str, max_chars: int) -> str:
    """At most ``max_chars`` characters, ending with a sentence where one ends in the second half."""
    if len(text) <= max_chars:
        return text
    head = text[:max_chars]
    ends = [m.end() for m in re.finditer(r"[.!?。！？][\"'”’)]*(?=\s|$)", head)]
    if ends and ends[-1] > max_chars // 2:
        return head[: ends[-1]]
    word = head[: max_chars - 1].rfind(" ")
    return head[: word if word > 0 else max_chars - 1].rstrip() + ELLIPSIS


def first_sense(extract: str, title: str) -> str:
    """The title of what a disambiguation page names first, or "" if its introduction names nothing.

    ``Mercury most commonly refers to:\\nMercury (planet), the closest …`` gives ``Mercury (planet)``.
    """
    base = re.sub(r"\s*\([^()]*\)$", "", title)
    for line in clean_lines(extract):
        if line.endswith(":") or re.search(r"\brefers? to\b|\bmay mean\b", line):
            continue
        if re.match(rf"{re.escape(base)}\s+(?:is|was|are|were)\b", line):
            sense = base
        else:
            sense = re.split(r",\s|\s[-–—]\s|:\s|;\s", line, maxsplit=1)[0].strip(" .,")
        if sense and sense != title and len(sense) <= 120:
            return sense
    return ""


def clean_lines(text: str) -> list[str]:
    """The lines of an extract, each one cleaned; empty ones left out."""
    return [line for line in map(clean, text.splitlines()) if line]


def _without_formulas(text: str) -> str:
    """Drop ``{\\displaystyle …}``: the extract has the symbols themselves before it."""
    while (start := text.find("{\\")) >= 0:
        depth, end = 0, len(text)
        for at in range(start, len(text)):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            if depth == 0:
                end = at + 1
                break
        text = text[:start] + " " + text[end:]
    return text


def _without_speech(text: str) -> str:
    """Drop how a word is spoken: whole brackets, or the parts of a bracket that say nothing else."""
    text = _NAMED_IPA.sub("", text)
    pieces: list[str] = []
    at = 0
    while (start := text.find("(", at)) >= 0:
        end = _closing(text, start)
        if end < 0:
            break
        pieces.append(_IPA.sub("", text[at:start]))
        kept = _bracket(text[start + 1 : end])
        if kept:
            pieces.append(f"({kept})")
        at = end + 1
    pieces.append(_IPA.sub("", text[at:]))
    return "".join(pieces)


def _closing(text: str, start: int) -> int:
    depth = 0
    for at in range(start, min(len(text), start + 2000)):
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1


def _bracket(inside: str) -> str:
    if not _IPA.search(inside) and not _SPEECH.search(inside):
        return "" if _EMPTY.match(inside) else inside
    kept = []
    for part in inside.split(";"):
        spoken = _IPA.search(part) or _SPEECH.search(part)
        if spoken and not _YEAR.search(part):
            # "German: [ˈalbɛʁt]" says only how it sounds; a name beside it is worth keeping
            continue
        part = _SPEECH.sub("", _IPA.sub("", part)) if spoken else part
        part = re.sub(r"\s*,(?:\s*,)+", ",", part).strip(" ,;:")
        if part and not _EMPTY.match(part):
            kept.append(part)
    return "; ".join(kept)
