"""Mutations of JSON: values replaced, removed or added; damaged text."""

from __future__ import annotations

import copy
import random
from typing import Any

VALUES: list[Any] = [
    None, True, -1, 0, 2**63, 10**400, float("nan"), float("inf"), "", "\x1b[2J", "a\nb", "\ud800",
    [], {}, [[]], {"name": 1}, "x" * 10_000,
]  # fmt: skip


def _places(data: Any, path: tuple = ()) -> list[tuple]:
    """Return the path to each value within ``data``."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    found = []
    for key, value in items:
        found.append((*path, key))
        if isinstance(value, dict | list):
            found += _places(value, (*path, key))
    return found


def mutated(data: Any, chance: random.Random) -> Any:
    """Return ``data`` with one to three values replaced, removed or added."""
    data = copy.deepcopy(data)
    for _ in range(chance.randint(1, 3)):
        places = _places(data)
        if not places:
            break
        *above, key = chance.choice(places)
        at = data
        for step in above:
            at = at[step]
        match chance.randrange(4):
            case 0:
                del at[key]
            case 1 if isinstance(at, dict):
                at["more"] = copy.deepcopy(chance.choice(VALUES))
            case _:
                at[key] = copy.deepcopy(chance.choice(VALUES))
    return data


def damaged(text: str, chance: random.Random) -> bytes:
    """Return ``text`` truncated, with bytes replaced, or with an insertion."""
    content = bytearray(text.encode())
    at = chance.randrange(len(content))
    match chance.randrange(3):
        case 0:
            del content[at:]
        case 1:
            content[at] = chance.randrange(256)
        case _:
            content[at:at] = chance.choice(
                [b"\0", b"\xff", b"{" * 50_000, b"9" * 5_000, b"&a *a", b"!!python/name:os.system "]
            )
    return bytes(content)
