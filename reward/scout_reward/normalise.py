"""Answer normalisation of the papers: SQuAD's rule, which HotpotQA and Search-R1 copy word for word."""

from __future__ import annotations

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(answer: str) -> str:
    """Lower case, then without ASCII punctuation, then without English articles, single spaces.

    The order matters and is SQuAD's (Rajpurkar et al. 2016, evaluation script v1.1): punctuation goes
    before articles, so "A.M." becomes "am" and "the-end" becomes "theend".
    """
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_DROP_PUNCTUATION)).split())
