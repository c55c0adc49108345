"""One answer is one entity: "Paris or Lyon" and "Paris, Lyon, Nice" are bets on several.

Exact match refuses such answers by itself, since the whole answer must equal a golden one. Token F1 does not:
a list that holds the right word earns a part. So where F1 is the outcome, an answer that lists candidates
earns what a wrong answer earns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scout_reward.exact_match import matched_answer
from scout_reward.normalise import Normaliser, normalise

# Separators that no name of one entity needs: line breaks, semicolons, bars, bullets, "or".
_ALTERNATIVES = re.compile(
    r"\s*(?:[\n\r;|•·；、]|\b(?:or|and/or|either|maybe|perhaps|possibly|alternatively)\b"
    r"|\s/\s|(?<!\d)/(?!\d))\s*",
    re.IGNORECASE,
)
# Separators that names and dates do need ("Washington, D.C.", "Simon & Garfunkel", "Alien: Covenant").
_LISTING = re.compile(
    r"\s*(?:,(?!\d{3}\b)|\band\b|&|[()\[\]]|:(?!\d)|\s[-–—]+\s|[!?](?=\s)|(?<=\w{4})\.(?=\s))\s*",
    re.IGNORECASE,
)
_MANY = 3


def is_single_entity(answer: str, golden_answers: Sequence[str], normaliser: Normaliser = normalise) -> bool:
    """Whether the answer names one thing.

    An answer that equals a golden answer as a whole always does ("Crime and Punishment"). Else it does not
    where it offers alternatives, where it lists three or more parts, or where one of two parts is by itself a
    golden answer.
    """
    if matched_answer(answer, golden_answers, normaliser):
        return True
    if len(_parts(_ALTERNATIVES, answer, normaliser)) > 1:
        return False
    parts = _parts(_LISTING, answer, normaliser)
    if len(parts) >= _MANY:
        return False
    return len(parts) == 1 or not any(matched_answer(part, golden_answers, normaliser) for part in parts)


def _parts(separator: re.Pattern[str], answer: str, normaliser: Normaliser) -> list[str]:
    parts = [part for part in separator.split(answer) if normaliser(part)]
    return parts or [answer]
