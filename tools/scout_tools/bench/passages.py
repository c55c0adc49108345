"""A corpus of any size out of real paragraphs, or of made-up words where there are none."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path


def write(path: Path, n: int, source: Path | None, tick: Callable[[int], None]) -> None:
    """``n`` passages of about 500 characters as JSON lines.

    Args:
        source: HotpotQA with ``contexts``; each passage is then the head of one paragraph and the tail of
            another, so that words are as frequent as in real text.
        tick: called with the number of passages written.
    """
    rng = random.Random(0)
    make = _from_paragraphs(source, rng) if source else _from_words(rng)
    with path.open("w", encoding="utf-8") as file:
        for i in range(n):
            title, text = make()
            # The number keeps titles apart: equal passages would be dropped.
            file.write(json.dumps({"id": str(i), "title": f"{title} {i}", "text": text[:600]}) + "\n")
            if i % 1000 == 999:
                tick(1000)


def _from_paragraphs(source: Path, rng: random.Random) -> Callable[[], tuple[str, str]]:
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines() if line.strip()]
    paragraphs = [(c["title"], c["paragraph_text"].split()) for row in rows for c in row["contexts"]]

    def make() -> tuple[str, str]:
        head, tail = rng.choice(paragraphs)[1], rng.choice(paragraphs)[1]
        cut = rng.randint(0, len(head))
        return rng.choice(paragraphs)[0], " ".join(head[:cut] + tail[cut:])

    return make


def _from_words(rng: random.Random) -> Callable[[], tuple[str, str]]:
    words = [f"w{i}" for i in range(200_000)]
    weights = list(accumulate(1.0 / (i + 2.7) for i in range(len(words))))  # Zipf

    def make() -> tuple[str, str]:
        chosen = rng.choices(words, cum_weights=weights, k=90)
        return " ".join(chosen[:2]), " ".join(chosen[2:])

    return make
