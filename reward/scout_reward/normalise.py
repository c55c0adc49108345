"""Answer normalisation: the protocol's, under the name that the rules of this room use."""

from __future__ import annotations

import re
import unicodedata

from scout_protocol.normalise import normalise

__all__ = ["folded", "normalise"]

_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2043", "-"))
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
_THOUSANDS = re.compile(r"(?<=\d)[,\u2009\u202f\u00a0](?=\d{3}(?!\d))")


def folded(text: str) -> str:
    """`normalise` after folding what only looks different: NFKC, dashes, quotes, accents, 1,000 = 1000.

    Reported beside the papers' rule and never instead of it: published numbers do not fold.
    """
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", _THOUSANDS.sub("", text)))
    text = text.translate(_DASHES).translate(_QUOTES)
    letters = (c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    return normalise(unicodedata.normalize("NFC", "".join(letters)))
