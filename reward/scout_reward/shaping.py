"""Terms beside the outcome. All are off by default, and each says how it will be gamed.

Every term is a number that is added to the reward; none is above 0.
"""

from __future__ import annotations

import string
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, TextIO

from scout_protocol.errors import UserError
from scout_reward.normalise import Normaliser, get_normaliser
from scout_reward.reading import Reading
from scout_reward.settings import RewardSettings

# setting -> how a policy wins it without getting better
HACK_RISKS = {
    "step_penalty": "answering at once costs nothing: a policy that is often wrong stops searching",
    "quadratic_step_penalty": "hard questions need more searches: the policy gives up on them first",
    "duplicate_query_penalty": "rewording the same query escapes it, and a needed second try is punished",
    "overlong_penalty": "short guesses are safe: reasoning shrinks before the answers improve",
    "no_search_penalty": "one throw-away search is enough to escape it",
    "no_evidence_penalty": "a search for the guess itself makes it evidence; what no page spells out loses",
}
F1_RISK = "likely words side by side earn a part without being right (two one-word guesses: 0.67)"

_AS_SPACE = str.maketrans(dict.fromkeys(string.punctuation, " "))
_announced: set[str] = set()


def risks(settings: RewardSettings) -> list[str]:
    """One line for each term that is switched on: its name, and how it may be gamed."""
    lines = [
        f"{name}={getattr(settings, name)}: {risk}"
        for name, risk in HACK_RISKS.items()
        if getattr(settings, name)
    ]
    return lines + ([f"outcome=f1: {F1_RISK}"] if settings.outcome == "f1" else [])


def announce(settings: RewardSettings, stream: TextIO | None = None) -> None:
    """Print the hack risk of every term that is switched on, each once in this process."""
    for line in risks(settings):
        name = line.partition("=")[0]
        if name not in _announced:
            _announced.add(name)
            print(f"reward: hack risk of {line}", file=stream or sys.stderr, flush=True)


def shaping(
    settings: RewardSettings, reading: Reading, queries: Sequence[str], answer: str
) -> dict[str, float]:
    """The terms that are switched on, by name; each at most 0.

    Args:
        queries: of the searches, in order.
        answer: the answer that was read; empty without one.

    Raises:
        UserError: the overlong term is on and the number of policy tokens is not known.
    """
    terms: dict[str, float] = {}
    n = len(queries)
    if settings.step_penalty:
        terms["steps"] = 0.0 - settings.step_penalty * n
    if settings.quadratic_step_penalty:
        terms["steps_squared"] = 0.0 - settings.quadratic_step_penalty * n * n
    if settings.duplicate_query_penalty:
        repeated = near_duplicates(queries, settings.duplicate_query_rouge_l)
        terms["duplicate_queries"] = 0.0 - settings.duplicate_query_penalty * repeated
    if settings.overlong_penalty:
        if reading.n_policy_tokens is None:
            raise UserError(
                "overlong_penalty",
                settings.overlong_penalty,
                "needs the number of policy tokens: read by mask",
            )
        soft = overlong(
            reading.n_policy_tokens, settings.overlong_max_tokens, settings.overlong_buffer_tokens
        )
        terms["overlong"] = settings.overlong_penalty * soft
    if settings.no_search_penalty:
        terms["no_search"] = 0.0 if n else -settings.no_search_penalty
    if settings.no_evidence_penalty:
        seen = not answer or in_evidence(answer, reading.tool_texts, get_normaliser(settings.normaliser))
        terms["no_evidence"] = 0.0 if seen else -settings.no_evidence_penalty
    return terms


def overlong(n_tokens: int, max_tokens: int, buffer_tokens: int) -> float:
    """DAPO's soft overlong punishment (arXiv:2503.14476, Eq. 13), in [-1, 0].

    0 up to L_max - L_cache, then a straight line down to -1 at L_max, and -1 beyond it.
    """
    over = n_tokens - (max_tokens - buffer_tokens)
    return 0.0 - min(max(over / buffer_tokens, 0.0), 1.0)


def in_evidence(answer: str, tool_texts: Sequence[str], normaliser: Normaliser) -> bool:
    """Whether the answer stands in an observation, whole words only. "yes" and "no" need not.

    A normaliser deletes punctuation, which glues the words of running text together ("Rome.</information>"),
    so a second reading with punctuation as space counts as well.
    """
    if normaliser(answer) in ("yes", "no"):
        return True

    def stands(text_of: Normaliser) -> bool:
        wanted = text_of(answer)
        return bool(wanted) and any(f" {wanted} " in f" {text_of(text)} " for text in tool_texts)

    return stands(normaliser) or stands(lambda text: normaliser(text.translate(_AS_SPACE)))


def near_duplicates(queries: Sequence[str], threshold: float) -> int:
    """How many queries have a ROUGE-L F-measure of at least ``threshold`` with an earlier one."""
    count = 0
    for i, query in enumerate(queries):
        earlier = queries[:i]
        if query in earlier or any(rouge_l(query, other) >= threshold for other in earlier):
            count += 1
    return count


def rouge_l(one: str, other: str) -> float:
    """ROUGE-L F-measure of two texts, by the package rouge-score, in [0, 1]."""
    return float(_scorer().score(one, other)["rougeL"].fmeasure)


@cache
def _scorer() -> Any:
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"], tokenizer=_Words())


class _Words:
    """Words as Unicode knows them. The package's own tokenizer drops every letter that is not a to z."""

    def tokenize(self, text: str) -> list[str]:
        words = "".join(c if c.isalnum() else " " for c in text.lower()).split()
        # text without spaces between words (CJK) is compared character by character
        return [piece for word in words for piece in (word if _is_unspaced(word) else [word])]


def _is_unspaced(word: str) -> bool:
    return not word.isascii() and any("\u3040" <= c <= "\u30ff" or "\u3400" <= c <= "\u9fff" for c in word)
