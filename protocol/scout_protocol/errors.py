"""The one error that a user is meant to read: what was wrong, where, and what to do about it."""

from __future__ import annotations

# Line breaks and terminal control characters would break the promise of one line.
_CONTROL = {c: f"\\x{c:02x}" for c in [*range(0x20), *range(0x7F, 0xA0)]} | {
    0x09: "\\t",
    0x0A: "\\n",
    0x0D: "\\r",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


class UserError(Exception):
    """A wrong input or a missing precondition, told in one line.

    Args:
        field: the option, file, column or key that is wrong.
        value: what was found there (shortened to 200 characters in the message).
        remedy: what the reader should do next.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        self.field, self.value, self.remedy = field, value, remedy
        shown = str(value)
        if len(shown) > 200:
            shown = shown[:200] + "…"
        super().__init__(f"{field}: {shown}: {remedy}".translate(_CONTROL))

    def __reduce__(self) -> tuple[type[UserError], tuple[str, object, str]]:
        # Exceptions pickle through their message; ours has three arguments, and Ray pickles it.
        return type(self), (self.field, self.value, self.remedy)
