"""Make texts of a file safe for logs, tables and terminals."""

from __future__ import annotations

import re
import unicodedata

# Control and format characters (escape sequences, directions of text), line and paragraph
# separators, halves of surrogate pairs.
_REFUSED = ("Cc", "Cf", "Zl", "Zp", "Cs")
_LINE_BREAK = re.compile(r"\s*[\n\r\t\v\f\x1c-\x1e\x85\u2028\u2029]\s*")


def is_printable(text: str) -> bool:
    """Whether ``text`` holds no control character; spaces of every width are allowed."""
    return all(unicodedata.category(character) not in _REFUSED for character in text)


def one_line(text: str) -> str:
    """``text`` on one line, its control characters as Python writes them in literals."""
    joined = _LINE_BREAK.sub(" ", text.strip())
    if is_printable(joined):
        return joined
    return "".join(c if is_printable(c) else ascii(c)[1:-1] for c in joined)


def shown(value: object, most: int = 100) -> str:
    """``repr`` of a value that a user gave, in at most ``most`` characters."""
    try:
        text = one_line(repr(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        return "a number of too many digits"
    return text if len(text) <= most else f"{text[:most]}..."
