"""Properties of `parse` on any text, and its time on texts meant to slow it down."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_protocol.dialect import DIALECTS, Dialect, get_dialect
from scout_protocol.errors import UserError
from scout_protocol.turn import Action, parse

MARKERS = sorted({m for d in DIALECTS.values() for m in d.markers})
pieces = st.lists(st.sampled_from([*MARKERS, " ", "x", "利马", "\n", "<", "</", "\u3000"]), max_size=25).map(
    "".join
)
texts = st.one_of(pieces, st.text())
dialects = st.sampled_from(list(DIALECTS.values()))


@given(texts, dialects)
def test_parse_never_raises_and_is_consistent(text: str, dialect: Dialect) -> None:
    turn = parse(text, dialect)
    assert 0 <= turn.end <= len(text)
    assert (turn.reason is None) == (turn.action is not Action.MALFORMED)
    assert turn.text == turn.text.strip()
    assert bool(turn.text) == (turn.action is not Action.MALFORMED)
    assert not any(m in turn.text for m in dialect.markers)
    if turn.action is not Action.MALFORMED:
        tag = dialect.search if turn.action is Action.SEARCH else dialect.answer
        assert text[: turn.end].endswith(tag.close)
        inside = text[text.rindex(tag.open, 0, turn.end) + len(tag.open) : turn.end - len(tag.close)]
        assert inside.strip() == turn.text


@given(texts, dialects)
def test_the_turn_ends_where_generation_would_have_stopped(text: str, dialect: Dialect) -> None:
    stops = [text.find(s) + len(s) for s in dialect.stops if s in text]
    assert parse(text, dialect).end == min(stops, default=len(text))


@given(texts, texts, dialects)
def test_what_follows_the_turn_changes_nothing(text: str, tail: str, dialect: Dialect) -> None:
    turn = parse(text, dialect)
    assert parse(text[: turn.end], dialect) == turn
    if any(s in text for s in dialect.stops):
        assert parse(text[: turn.end] + tail, dialect) == turn


@given(st.text(min_size=1).filter(lambda s: s.strip() and "<" not in s), dialects)
def test_what_is_written_between_the_tags_comes_back(query: str, dialect: Dialect) -> None:
    turn = parse(
        f"{dialect.think.open}t{dialect.think.close}{dialect.search.open}{query}{dialect.search.close}",
        dialect,
    )
    assert (turn.action, turn.text, turn.think) == (Action.SEARCH, query.strip(), "t")


ATTACKS = {
    "searches": "<search>",
    "nested": "<search><answer><think>",
    "thinks": "<think></think>",
    "mentions": "<think><search><answer></think>",
    "brackets": "<",
    "closers without a bracket": "</search",
    "spaces": " ",
    "observations": "<information></information>",
}


@pytest.mark.parametrize("unit", ATTACKS.values(), ids=ATTACKS.keys())
def test_time_is_linear_in_the_text(unit: str) -> None:
    def best_s(n_chars: int) -> float:
        text = "<think><search>" + unit * (n_chars // len(unit)) + "</search>"
        times = []
        for _ in range(7):
            start = time.process_time()
            parse(text)
            times.append(time.process_time() - start)
        return min(times)

    # 10 times the text may take 10 times as long, quadratic would take 100 times
    assert best_s(100_000) < 30 * max(best_s(10_000), 1e-4)


def test_dialects_have_the_documented_tags() -> None:
    assert get_dialect("search-r1").stops == ("</search>", "</answer>")
    assert get_dialect("react").stops == ("</call:search>", "</answer>")
    assert get_dialect("react").observation.open == "<observation>"
    with pytest.raises(UserError, match="dialect: xml: choose one of react, search-r1"):
        get_dialect("xml")
