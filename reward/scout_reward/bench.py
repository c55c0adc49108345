"""`scout reward bench`: how long scoring takes, on made-up trajectories of a given size."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from scout_protocol.observation import Document, render
from scout_protocol.records import Author, Span
from scout_reward.reading import read_spans
from scout_reward.score import score
from scout_reward.settings import RewardSettings

_PROSE = """the capital of a province was founded by an engineer in 1889 and its river, bridge and cathedral
were named after Gustave Röntgen, who lived (1845–1923) near Königsberg"""
_WORDS = _PROSE.split()
_DISTINCT = 2_000  # trajectories made; scored again and again up to the number asked for


@dataclass(frozen=True, slots=True)
class Timing:
    """``seconds`` of one core for ``n`` trajectories of ``mean_bytes`` bytes each."""

    n: int
    mean_bytes: float
    seconds: float
    mean_total: float


def measure(n: int, kilobytes: float, policy_share: float, settings: RewardSettings, seed: int = 0) -> Timing:
    """Score ``n`` trajectories, whose texts hold ``kilobytes`` kB with ``policy_share`` of it by the policy.

    The time covers what training pays per trajectory: reading the spans and scoring. It is CPU time of this
    one thread, so that what else the machine does is not counted.
    """
    rng = random.Random(seed)
    made = [_trajectory(rng, kilobytes * 1000, policy_share) for _ in range(min(n, _DISTINCT))]
    sizes = [sum(len(span.text.encode()) for span in spans) for spans, _ in made]
    total = 0.0
    start = time.process_time()
    for i in range(n):
        spans, golden = made[i % len(made)]
        total += score(read_spans(spans), golden, settings=settings).total
    seconds = time.process_time() - start
    return Timing(n, sum(sizes) / len(sizes), seconds, total / n)


def _trajectory(rng: random.Random, size: float, policy_share: float) -> tuple[list[Span], list[str]]:
    searches = rng.randint(1, 3)
    think, page = int(size * policy_share / (searches + 1)), int(size * (1 - policy_share) / searches)
    spans: list[Span] = []
    for _ in range(searches):
        said = f"<think>{_prose(rng, think - 60)}</think><search>{_prose(rng, 40)}</search>"
        spans.append(Span(Author.POLICY, said, [1] * (len(said) // 4)))
        seen = render([Document(str(i), "Title", _prose(rng, page // 3)) for i in range(3)]) if page else ""
        spans.append(Span(Author.TOOL, seen, [2] * (len(seen) // 4)))
    answer = _prose(rng, 12)
    said = f"<think>{_prose(rng, think - 40)}</think><answer>{answer}</answer>"
    spans.append(Span(Author.POLICY, said, [1] * (len(said) // 4)))
    return spans, [answer if rng.random() < 0.4 else _prose(rng, 12), _prose(rng, 12)]


def _prose(rng: random.Random, size: int) -> str:
    words: list[str] = []
    length = 0
    while length < size:
        words.append(rng.choice(_WORDS))
        length += len(words[-1]) + 1
    return " ".join(words)
