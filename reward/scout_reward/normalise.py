"""Answer normalisation: the papers' rule, which the protocol holds, and a folded one beside it."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache

from scout_protocol.errors import UserError
from scout_protocol.normalise import normalise

Normaliser = Callable[[str], str]

# Letters that Unicode does not take apart into a base letter and an accent.
_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"})
_ACCENTS = re.compile("[\u0300-\u036f]+")  # Latin, Greek, Cyrillic; が keeps its mark, which is no accent
# A gap that typesetters put into numbers: no-break, figure, thin and narrow no-break space, apostrophes,
# the Arabic separator. A plain space may part two numbers, a full stop may be decimal: both stay.
_THOUSANDS = re.compile("(?<=\\d)[\u00a0\u2007\u2009\u202f'\u2019\u066c](?=\\d{3}(?!\\d))")
_SPACED_RANGE = re.compile(r"(?<=\d)\s*-\s*(?=\d)")
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2043\ufe58\ufe63\uff0d"
_TO_HYPHEN = str.maketrans(dict.fromkeys(_DASHES, "-"))


@cache
def _unicode_punctuation() -> dict[int, None]:
    """Every character of the categories P* (quotation marks, CJK brackets), for `str.translate`."""
    return {
        code: None for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)).startswith("P")
    }


def folded(answer: str) -> str:
    """`normalise` after NFKC, with dashes, accents, thousands separators and typographic quotes folded.

    "1 234" (thin space) equals "1234", "1914 – 1918" equals "1914-1918", "Röntgen" equals "Rontgen",
    "“Ｐａｒｉｓ”" equals "Paris".
    """
    if answer.isascii() and "'" not in answer and "-" not in answer:
        return normalise(answer)
    text = _THOUSANDS.sub("", answer)
    text = unicodedata.normalize("NFKC", text).translate(_TO_HYPHEN)
    text = _SPACED_RANGE.sub("-", text)
    text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text.casefold())).translate(_LETTERS)
    return normalise(unicodedata.normalize("NFC", text).translate(_unicode_punctuation()))


__all__ = ["NORMALISERS", "Normaliser", "folded", "get_normaliser", "normalise", "normalise_gold"]

NORMALISERS: dict[str, Normaliser] = {"search_r1": normalise, "folded": folded}


def get_normaliser(name: str) -> Normaliser:
    """The normaliser of that name.

    Raises:
        UserError: no normaliser has that name.
    """
    if name not in NORMALISERS:
        raise UserError("normaliser", name, f"choose one of {', '.join(NORMALISERS)}")
    return NORMALISERS[name]


@lru_cache(maxsize=1 << 16)
def normalise_gold(gold: str, normaliser: Normaliser) -> str:
    """The same for golden answers, which every member of a group asks for again."""
    return normaliser(gold)
