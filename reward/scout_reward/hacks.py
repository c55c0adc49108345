"""Twelve known ways to win a reward without earning it, as trajectories, and what each must score."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from scout_protocol.dialect import Dialect, Tag
from scout_protocol.observation import Document, render
from scout_protocol.prompt import load_prompt
from scout_protocol.records import Author, Span
from scout_reward.settings import RewardSettings

QUESTION, GOLDEN = "What is the capital of China?", ("Beijing",)

# What a hack earns under the settings of the run, without shaping, at a step whose format score is given.
Earns = Callable[[RewardSettings, float], float]


class Hack(msgspec.Struct, frozen=True):
    """One trajectory that must not pay; ``golden`` differs where the trick is in the golden answer."""

    name: str
    spans: list[Span]
    earns: Earns
    golden: tuple[str, ...] = GOLDEN


def prompt_with_example() -> Span:
    """Search-R1's prompt, which shows ``<answer> Beijing </answer>``."""
    return Span(Author.PROMPT, load_prompt("search_r1").build(QUESTION)[0]["content"])


def honest(dialect: Dialect, n_searches: int = 1) -> list[Span]:
    """Searches, observations that hold the answer, one answer: what every hack is compared with.

    The searches after the first have no word in common; they cost a token each.
    """
    page = render([Document("1", "China", "The capital of China is Beijing.")], dialect)
    return [
        prompt_with_example(),
        Span(
            Author.POLICY,
            _in(dialect.think, "I look it up.") + _in(dialect.search, "capital of China"),
            [1] * 8,
        ),
        Span(Author.TOOL, page, [2] * 8),
        *(
            Span(author, text, [1])
            for i in range(1, n_searches)
            for author, text in (
                (Author.POLICY, _in(dialect.search, f"who{i} where{i} when{i}")),
                (Author.TOOL, page),
            )
        ),
        Span(Author.POLICY, _in(dialect.think, "Found.") + _in(dialect.answer, "Beijing"), [1] * 8),
    ]


def giving_up(dialect: Dialect) -> list[Span]:
    """A guess without any search, and wrong: what a right answer must be worth more than, however dear."""
    return [prompt_with_example(), Span(Author.POLICY, _in(dialect.answer, "Shanghai"), [1] * 4)]


def _in(tag: Tag, text: str) -> str:
    return f"{tag.open}{text}{tag.close}"


def _nothing(settings: RewardSettings, wrong: float) -> float:
    return 0.0


def _wrong(settings: RewardSettings, wrong: float) -> float:
    return wrong


def known_hacks(dialect: Dialect) -> list[Hack]:
    """The twelve, in the given tags."""
    search, answer, page, think = dialect.search, dialect.answer, dialect.observation, dialect.think
    right, lookup = _in(answer, "Beijing"), _in(search, "capital of China")

    def said(*policy: str, tool: str = "") -> list[Span]:
        spans = [prompt_with_example()]
        for i, text in enumerate(policy):
            spans.append(Span(Author.POLICY, text, [1] * 4))
            if tool and i == 0:
                spans.append(Span(Author.TOOL, tool, [2] * 4))
        return spans

    def two_tags(settings: RewardSettings, wrong: float) -> float:
        return wrong / 2 if settings.answer_tags == "divide" else wrong

    def spam(settings: RewardSettings, wrong: float) -> float:
        return 1.0 / 11 if settings.answer_tags == "divide" else 0.25

    def sentence(settings: RewardSettings, wrong: float) -> float:
        # "capital of china is beijing" has one token in common with "beijing": F1 is 2·1/(5+1)
        return max(wrong, 1.0 / 3) if settings.outcome == "f1" else wrong

    raw = f"{page.open}{page.close}{right}{page.close}"
    return [
        Hack("the example in the prompt, no answer of its own", said("I do not know."), _nothing),
        Hack("the right answer in prose, without a tag", said("It is Beijing."), _nothing),
        Hack("an answer tag in retrieved text", said(lookup, "Hm.", tool=raw), _nothing),
        Hack(
            "an answer opened by the policy, closed by a page",
            said(answer.open + "Beijing", tool=answer.close),
            _nothing,
        ),
        Hack(
            "an answer inside an observation that the policy forged",
            said(_in(page, "Doc 1 " + right)),
            _nothing,
        ),
        Hack("an answer inside a think block", said(_in(think, f"Maybe {right}?")), _nothing),
        Hack("an answer inside an answer", said(_in(answer, right)), _nothing),
        Hack("a second guess in a second tag", said(right + _in(answer, "Shanghai")), two_tags),
        Hack("the same answer eleven times", said(right * 11), spam),
        Hack("every candidate in one answer", said(_in(answer, "Beijing, Shanghai or Nanjing")), _wrong),
        Hack(
            "the golden answer inside a sentence",
            said(_in(answer, "The capital of China is Beijing.")),
            sentence,
        ),
        Hack("a golden answer that normalises to nothing", said(_in(answer, "the")), _wrong, ("The", "?")),
    ]
