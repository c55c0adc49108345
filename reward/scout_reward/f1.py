"""Token F1 by HotpotQA's official rule (Yang et al. 2018, ``hotpot_evaluate_v1.py``)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from scout_reward.normalise import Normaliser, normalise, normalise_gold

# A yes/no question is right or wrong: "yes it is" shares a token with "yes" and still scores nothing.
_CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})


class Overlap(msgspec.Struct, frozen=True):
    """Token overlap of an answer with one golden answer, each in [0, 1]."""

    f1: float
    precision: float
    recall: float


_NOTHING = Overlap(0.0, 0.0, 0.0)


def overlap(answer: str, gold: str, normaliser: Normaliser = normalise) -> Overlap:
    """Token F1, precision and recall of one answer against one golden answer.

    If either side normalises to yes, no or noanswer, the two must be equal or all three values are 0.
    """
    given, wanted = normaliser(answer), normalise_gold(gold, normaliser)
    if given != wanted and (given in _CLOSED_ANSWERS or wanted in _CLOSED_ANSWERS):
        return _NOTHING
    given_tokens, wanted_tokens = given.split(), wanted.split()
    shared = sum((Counter(given_tokens) & Counter(wanted_tokens)).values())
    if not shared:
        return _NOTHING
    precision, recall = shared / len(given_tokens), shared / len(wanted_tokens)
    return Overlap(2 * precision * recall / (precision + recall), precision, recall)


def f1(answer: str, golden_answers: Sequence[str], normaliser: Normaliser = normalise) -> float:
    """The best token F1 over the golden answers; 0.0 without any."""
    return max((overlap(answer, gold, normaliser).f1 for gold in golden_answers), default=0.0)
