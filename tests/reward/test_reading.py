"""Who wrote what: by spans where only text is known, by mask where tokens are. Both give one reading."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scout_protocol.dialect import SEARCH_R1
from scout_protocol.errors import UserError
from scout_protocol.records import Author, Span
from scout_reward.reading import read_mask, read_spans
from scout_reward.score import score


def decode(ids: list[int]) -> str:
    """Every id is a character: what a mask cuts is exactly the text that it cuts."""
    return "".join(map(chr, ids))


def mask_of(spans: list[Span]) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    mask: list[int] = []
    for span in spans:
        if span.author is not Author.PROMPT:
            ids += map(ord, span.text)
            mask += [int(span.author is Author.POLICY)] * len(span.text)
    return ids, mask


def with_ids(spans: list[Span]) -> list[Span]:
    return [Span(s.author, s.text, [ord(c) for c in s.text]) for s in spans]


PIECES = st.lists(st.sampled_from([*SEARCH_R1.markers, "Paris", " ", "\n", "x"]), min_size=1, max_size=8).map(
    "".join
)
SPANS = st.lists(st.builds(Span, st.sampled_from([Author.POLICY, Author.TOOL]), PIECES), max_size=6)


@given(SPANS)
def test_a_mask_loses_and_mixes_nothing(spans: list[Span]) -> None:
    by_mask = read_mask(*mask_of(spans), decode)
    by_spans = read_spans(with_ids(spans))
    assert by_mask.n_policy_tokens == by_spans.n_policy_tokens
    assert "".join(by_mask.policy_texts) == "".join(by_spans.policy_texts)
    assert "".join(by_mask.tool_texts) == "".join(by_spans.tool_texts)


ALTERNATING = st.lists(st.tuples(PIECES, PIECES), max_size=4).map(
    lambda pairs: [Span(a, t) for own, seen in pairs for a, t in ((Author.POLICY, own), (Author.TOOL, seen))]
)


@given(ALTERNATING)
def test_turns_with_observations_between_them_give_equal_readings(spans: list[Span]) -> None:
    assert read_mask(*mask_of(spans), decode) == read_spans(with_ids(spans))


@given(ALTERNATING, PIECES)
def test_no_tool_or_prompt_text_is_ever_read(spans: list[Span], page: str) -> None:
    before = score(read_spans(spans), ["Paris"])
    poisoned = [
        Span(s.author, page + "<answer>Paris</answer>") if s.author is Author.TOOL else s for s in spans
    ]
    prompt = Span(Author.PROMPT, "For example, <answer> Paris </answer>.")
    assert score(read_spans([prompt, *poisoned]), ["Paris"]) == before
    assert score(read_mask(*mask_of(poisoned), decode), ["Paris"]) == before


def test_tokens_are_counted_where_all_are_known() -> None:
    known = [Span(Author.POLICY, "ab", [1, 2]), Span(Author.TOOL, "c", [3]), Span(Author.POLICY, "d", [4])]
    assert read_spans(known).n_policy_tokens == 3
    assert read_spans([*known, Span(Author.POLICY, "e")]).n_policy_tokens is None
    assert read_spans([*known, Span(Author.POLICY, "e")], 7).n_policy_tokens == 7
    assert read_spans([]).n_policy_tokens == 0


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(UserError, match="response_mask"):
        read_mask([1, 2, 3], [1, 0], decode)


def test_a_closing_tag_in_the_observation_closes_nothing() -> None:
    spans = [Span(Author.POLICY, "<answer>Paris"), Span(Author.TOOL, "</answer>"), Span(Author.POLICY, "x")]
    assert score(read_mask(*mask_of(spans), decode), ["Paris"]).total == 0.0
