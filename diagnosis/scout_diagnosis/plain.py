"""Text of unknown origin made safe for a terminal."""

from __future__ import annotations

import re
import unicodedata

_SUSPECT = re.compile(r"[^\x20-\x7e\n\t]")
# Control (C0, C1, escape), invisible format marks (direction overrides, zero-width space), surrogates,
# private use, line and paragraph separators: they move the cursor, reorder or hide what a reader sees.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Zl", "Zp"))
_JOINERS = "\u200c\u200d"  # Persian, Indic scripts and emoji are misspelt without them


def plain(text: object) -> str:
    r"""The text with every hidden character spelt out (``\x1b``, ``\u202e``); line feeds and tabs stay."""
    return _SUSPECT.sub(_spell, str(text))


def one_line(text: object) -> str:
    r"""`plain` on one line: line feeds and tabs are spelt out, too (``\n``, ``\t``)."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def _spell(match: re.Match[str]) -> str:
    char = match.group()
    if char in _JOINERS or unicodedata.category(char) not in _HIDDEN:
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
