"""When two answers, or two questions, are the same text: SQuAD's rule, which HotpotQA and Search-R1 copy.

It is a word of the protocol because the reward scores by it and the data audit asks whether a golden answer
can be won at all: two definitions would drift apart.
"""

from __future__ import annotations

import re
import string

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_DROP_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalise(text: str) -> str:
    """Lower case, then without ASCII punctuation, then without English articles, single spaces.

    The order matters and is SQuAD's (Rajpurkar et al. 2016, evaluation script v1.1): punctuation goes
    before articles, so "A.M." becomes "am" and "the-end" becomes "theend".
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_DROP_PUNCTUATION)).split())
