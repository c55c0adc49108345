"""Answer normalisation of the papers: SQuAD's rule, which HotpotQA and Search-R1 copy word for word."""

from __future__ import annotations

import re
import string
import unicodedata

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)
_DASHES = str.maketrans(dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2043", "-"))
_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"'})
_THOUSANDS = re.compile(r"(?<=\d)[,\u2009\u202f\u00a0](?=\d{3}(?!\d))")


def normalise(answer: str) -> str:
    """Lower case, then without ASCII punctuation, then without English articles, single spaces.

    The order matters and is SQuAD's (Rajpurkar et al. 2016, evaluation script v1.1): punctuation goes
    before articles, so "A.M." becomes "am" and "the-end" becomes "theend".
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_DROP_PUNCTUATION)).split())


def folded(text: str) -> str:
    """`normalise` after folding what only looks different: NFKC, dashes, quotes, accents, 1,000 = 1000.

    Reported beside the papers' rule and never instead of it: published numbers do not fold.
    """
    text = _THOUSANDS.sub("", unicodedata.normalize("NFKC", _THOUSANDS.sub("", text)))
    text = text.translate(_DASHES).translate(_QUOTES)
    letters = (c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))
    return normalise(unicodedata.normalize("NFC", "".join(letters)))
