"""Queries lose their syntax; extracts lose everything that is not a sentence."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wiki_conditions import needs_shared

from scout_tools.backends.wiki_text import MAX_QUERY_CHARS, clean, first_sense, normalise_query, shorten


@pytest.mark.parametrize(
    ("query", "sent"),
    [
        ('Who  wrote\n"Hamlet"?', "who wrote hamlet"),
        ("insource:/a.*b/ -bar +baz !qux", "insource /a. b/ bar baz qux"),
        ("C++ or C# and AC/DC, 9/11", "c++ or c# and ac/dc, 9/11"),
        ("Ｚürich ﬁne", "zürich fine"),
        ("well-known pre-1900", "well-known pre-1900"),
        ("東京 タワー", "東京 タワー"),
        ("???", ""),
        ("", ""),
    ],
)
def test_what_a_query_becomes(query, sent):
    assert normalise_query(query) == sent


@given(st.text(max_size=700))
def test_a_query_is_short_has_no_syntax_and_is_stable(query):
    sent = normalise_query(query)
    assert len(sent) <= MAX_QUERY_CHARS and not set(sent) & set('":~*?\\|<>{}[]()^\n\t')
    assert normalise_query(sent) == sent
    assert not any(word.startswith("-") for word in sent.split())


def test_a_long_query_is_cut_between_words():
    words = " ".join(f"word{i}" for i in range(100))
    sent = normalise_query(words)
    assert len(sent) <= MAX_QUERY_CHARS and words.startswith(sent + " ")


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        (
            "Albert Einstein (/ˈaɪnstaɪn/ EYEN-styne; German: [ˈalbɛʁt ˈaɪnʃtaɪn] ⓘ; 14 March 1879 – 18 "
            "April 1955) was a physicist.",
            "Albert Einstein (14 March 1879 – 18 April 1955) was a physicist.",
        ),
        ("London ( (listen) LUN-dən; /ˈlʌndən/) is the capital.", "London is the capital."),
        (
            "Celtuce (Lactuca sativa), IPA (UK,US) /ˈsɛlt.əs/, is eaten.",
            "Celtuce (Lactuca sativa), is eaten.",
        ),
        ("Emmy Noether (US: , UK: ; German: [ˈnøːtɐ]; born 1882) was", "Emmy Noether (born 1882) was"),
        ("Heydar Aliyev (Azerbaijani: Heydər Əliyev) was", "Heydar Aliyev (Azerbaijani: Heydər Əliyev) was"),
        ("A band (formed in 1990 (or 1991)) plays.", "A band (formed in 1990 (or 1991)) plays."),
        (
            "A <b>bold</b> &amp; <a href='x'>link</a><ref name=a>note</ref> &lt;kept&gt;",
            "A bold & link <kept>",
        ),
        ("x < y and z > w", "x < y and z > w"),
        ("The value \n\n  x\n {\\displaystyle x^{2_{a}}}\n is", "The value x is"),
        ("One.\n\n== History ==\nTwo (; ) three ().", "One. Two three."),
        ("On 9/11 AC/DC [sic] met and/or left.", "On 9/11 AC/DC [sic] met and/or left."),
        ("a (never closed /ˈeɪ/ b", "a (never closed b"),
    ],
)
def test_clean(raw, plain):
    assert clean(raw) == plain


@given(st.text(alphabet="ab ()[]/ˈə;,.<>&{}\\\n=12", max_size=200))
def test_clean_never_fails_and_never_grows(raw):
    text = clean(raw)
    assert len(text) <= len(raw) and "\n" not in text and "  " not in text


def test_shorten_ends_with_a_sentence():
    text = "One sentence. Another one! " + "word " * 50
    assert shorten(text, 30) == "One sentence. Another one!"
    assert shorten(text, 100).endswith("word…") and len(shorten(text, 100)) <= 100
    assert shorten("short", 100) == "short"
    assert len(shorten("x" * 500, 100)) == 100


@pytest.mark.parametrize(
    ("extract", "title", "sense"),
    [
        ("Mercury most commonly refers to:\nMercury (planet), near the Sun", "Mercury", "Mercury (planet)"),
        ("Ram is a brand\nDodge Ramcharger - a car", "Ram (disambiguation)", "Ram"),
        ("X may refer to:\n\nX-ray – radiation\nXylophone", "X", "X-ray"),
        ("Phoenix may refer to:", "Phoenix", ""),
        ("", "Nothing", ""),
    ],
)
def test_first_sense(extract, title, sense):
    assert first_sense(extract, title) == sense


@pytest.mark.shared_data
@needs_shared
def test_recorded_extracts_become_sentences():
    from fake_wikipedia import SHARED

    mocks = json.loads((SHARED / "goldsmith_request_mock.json").read_text(encoding="utf-8"))
    extracts = [
        page["extract"]
        for mock in mocks
        for page in mock["response"].get("query", {}).get("pages", {}).values()
        if "extract" in page
    ]
    assert len(extracts) >= 5
    for extract in extracts:
        text = clean(extract)
        assert "==" not in text and "ˈ" not in text and "IPA" not in text and "\n" not in text
        # nothing but pronunciation, headings and line breaks goes
        assert len(text.split()) > 0.9 * len(extract.split())
