"""Words that a query does without.

Almost every passage holds them, so they tell passages apart least and cost most: their posting lists are the
longest. They are left out of queries only; the index holds them all. On 500 real HotpotQA questions recall@3
goes from .671 to .672, recall@10 from .909 to .920, and a search takes a sixth of the CPU time
(docs/adr/0008-stop-words-at-query-time.md).

The list holds function words alone. It spares personal pronouns, negations, numerals and words of place and
order ("her", "not", "two", "up", "first"), since those carry titles; ``scout index eval --keep-stop-words``
measures without it.

On a large index, words that more than a fifth of its passages hold go as well ("film", "american" and "first"
in Wikipedia's), where rarer ones are left to decide: `rarer_terms`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence

_WORDS = """
a an the and or but if than then because so too very as at by for from in into of on per to upon with after
before during until since through while about among between against within without via both either neither nor
though although however
am is are was were be been being has have had having do does did doing done can could would should will shall
may might must
what which who whose whom why how when where that this these those there here it its itself his their theirs
themselves himself herself
all any each most other such own same only just also more some s d t ll re ve
"""
STOP_WORDS = frozenset(_WORDS.split())
COMMON_SHARE = 0.2  # of the passages
COMMON_FROM = 100_000  # passages: below, a search is quick with any words
_RARER = 2  # so many must be left
# Part of the backend's fingerprint: another list gives other answers.
_RULE = f"{' '.join(sorted(STOP_WORDS))} {COMMON_SHARE} {COMMON_FROM} {_RARER}"
VERSION = hashlib.sha256(_RULE.encode()).hexdigest()[:8]


def search_terms(terms: Sequence[str], stop_words: Collection[str], limit: int) -> list[str]:
    """The terms to search for, each once, at most ``limit``; all of them where nothing else is left.

    "Who Is It?" is a title: a query of stop words alone keeps them.
    """
    unique = dict.fromkeys(terms)
    kept = [term for term in unique if term not in stop_words]
    return (kept or list(unique))[:limit]


def rarer_terms(terms: list[str], passages_with: Callable[[str], int], n_passages: int) -> list[str]:
    """The terms that at most `COMMON_SHARE` of the passages hold; all of them where fewer than two are left.

    Args:
        passages_with: a term's document frequency.
        n_passages: of the index.
    """
    if len(terms) <= _RARER:
        return terms
    rarer = [term for term in terms if passages_with(term) <= COMMON_SHARE * n_passages]
    return rarer if len(rarer) >= _RARER else terms
