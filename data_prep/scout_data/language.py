"""A guess at a question's language: by its script, and for Latin letters by its commonest words.

Good enough to see that a file is not in the language it should be; not made to tell close languages apart.
"""

from __future__ import annotations

import re

_SCRIPTS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (name, re.compile(f"[{ranges}]"))
    for name, ranges in (
        ("ja", "\u3040-\u30ff"),
        ("zh", "\u3400-\u4dbf\u4e00-\u9fff"),
        ("ko", "\uac00-\ud7af\u1100-\u11ff"),
        ("cyrillic", "\u0400-\u052f"),
        ("arabic", "\u0600-\u06ff\u0750-\u077f"),
        ("greek", "\u0370-\u03ff"),
        ("hebrew", "\u0590-\u05ff"),
        ("devanagari", "\u0900-\u097f"),
        ("thai", "\u0e00-\u0e7f"),
    )
)
_WORDS = {
    "en": "the of in what who which when where how is was are were did does do that for on and by with has",
    "de": "der die das wer wie wo wann welche welcher welches ist war und von wurde hat dem den ein eine",
    "fr": "le la les du des qui quel quelle quels est était dans et une où quand comment combien par",
    "es": "el los las del quién qué cuál cuándo dónde cómo es fue en una y por se",
    "it": "il lo gli chi che cosa quale quando dove come è di della nel un una fu",
    "pt": "o os as do da dos quem que qual quando onde como é foi em uma e no na",
    "nl": "de het een wie wat welke wanneer waar hoe is was van en op door werd",
}
_BY_WORD: dict[str, list[str]] = {}
for _name, _list in _WORDS.items():
    for _word in _list.split():
        _BY_WORD.setdefault(_word, []).append(_name)
_TOKEN = re.compile(r"[^\W\d_]+")
_SCRIPT_SHARE = 0.2  # of the letters; below, it is a name in a Latin sentence


def language_of(text: str) -> str:
    """A code such as ``en``, ``zh``, a script's name, or ``unclear``. 2,000 characters count."""
    text = text[:2000]
    if not text.isascii():
        letters = sum(map(len, _TOKEN.findall(text)))
        for name, pattern in _SCRIPTS:
            if letters and len(pattern.findall(text)) > _SCRIPT_SHARE * letters:
                return name
    votes: dict[str, float] = {}
    for word in _TOKEN.findall(text.lower()):
        for name in _BY_WORD.get(word, ()):
            votes[name] = votes.get(name, 0.0) + 1 / len(_BY_WORD[word])
    if not votes:
        return "unclear"
    best = max(votes, key=lambda name: (votes[name], name == "en"))
    return best
