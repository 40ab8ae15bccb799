"""Values of the YAML file that restricts the search space, checked as they are read."""

from __future__ import annotations

from typing import Any

from tvmopt.errors import ConfigError
from tvmopt.printable import is_printable, shown


def listed(value: object) -> list[Any]:
    """Return a list as it is, and any other value as a list of one."""
    return value if isinstance(value, list) else [value]


def whole(key: str, value: object) -> int:
    """Return a whole number.

    Raises:
        ConfigError: When ``value`` is none.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{key} must be a whole number, but got {shown(value)}")
    return value


def word(key: str, value: object) -> str:
    """Return a printable word; YAML reads some words as numbers.

    Raises:
        ConfigError: When ``value`` is none.
    """
    text = value if isinstance(value, str) else shown(value)
    known = isinstance(value, str | float) or (isinstance(value, int) and abs(value) < 2**63)
    if not known or not is_printable(text):
        raise ConfigError(f"{key} must hold printable words and numbers, but got {shown(value)}")
    return text


def words(key: str, value: object) -> tuple[str, ...]:
    """Return the words of a list; one word alone is a list of one."""
    return tuple(word(key, item) for item in listed(value))


def skip_set(key: str, value: object) -> str:
    """Return a skip set, written as ``"0,3"``, as ``[0, 3]`` or as one number."""
    if isinstance(value, list):
        return ",".join(word(key, item) for item in value)
    return "" if value is None else word(key, value)
