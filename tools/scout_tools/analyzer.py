"""How text becomes terms; documents and queries go through the same analyzer."""

from __future__ import annotations

from typing import Any

# Unicode words, lowercased. Part of the index's meta.json: another rule needs another index.
TOKENIZER = r"regex \w+ | lowercase"
TOKENIZER_NAME = "scout_words"


def is_tantivy_error(error: BaseException) -> bool:
    """Whether tantivy failed: it raises ValueError, or PanicException for a panic of its Rust code."""
    return isinstance(error, ValueError) or type(error).__name__ == "PanicException"


def make_analyzer() -> Any:
    """A tantivy analyzer for `TOKENIZER`; its `analyze(text)` gives the terms in order."""
    import tantivy

    words = tantivy.Tokenizer.regex(r"\w+")
    return tantivy.TextAnalyzerBuilder(words).filter(tantivy.Filter.lowercase()).build()
