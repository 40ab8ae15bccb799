"""Which texts of a file may come into logs, tables and terminals."""

from __future__ import annotations

import unicodedata

# Control and format characters (escape sequences, directions of text), line and paragraph
# separators, halves of surrogate pairs.
_REFUSED = ("Cc", "Cf", "Zl", "Zp", "Cs")


def is_printable(text: str) -> bool:
    """Whether ``text`` holds no control character; spaces of every width are allowed."""
    return all(unicodedata.category(character) not in _REFUSED for character in text)
