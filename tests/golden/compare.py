"""Compare two records.

    python -m tests.golden.compare A.json B.json [--texts A_DIR B_DIR] [--rename RENAMES.txt]

Entries are equal where their hashes are. With the texts of both, those that differ are compared
again with the renames applied to A's text: lines ``old=new``, whole identifiers, ``*`` stands for
the letters, digits and underscores before or after (``send_*=store_*``). The first lines that
differ are shown. The exit code is 1 where something differs, is missing or is new.
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import itertools
import json
import re
from pathlib import Path
from typing import Any

from .record import combined, text_file

_Groups = dict[str, dict[str, Any]]


class Renames:
    """Identifiers that are called otherwise afterwards."""

    def __init__(self, lines: str = "") -> None:
        pairs = [line.split("=") for line in lines.splitlines() if line.strip()]
        self._pairs = [(_pattern(old.strip()), _replacement(new.strip())) for old, new in pairs]

    def __call__(self, text: str) -> str:
        for pattern, new in self._pairs:
            text = pattern.sub(new, text)
        return text


def _pattern(old: str) -> re.Pattern[str]:
    letters = re.escape(old).replace(re.escape("*"), r"(\w*)")
    return re.compile(rf"(?<!\w){letters}(?!\w)")


def _replacement(new: str) -> str:
    numbers = itertools.count(1)
    return re.sub(r"\*", lambda _: rf"\g<{next(numbers)}>", new)


def differences(before: _Groups, after: _Groups) -> list[tuple[str, str, str]]:
    """Group, name and part of what differs; the part of what is in one alone is a word."""
    found = []
    for group in dict.fromkeys([*before, *after]):
        old, new = before.get(group, {}), after.get(group, {})
        for name in dict.fromkeys([*old, *new]):
            if name not in old or name not in new:
                found.append((group, name, "missing" if name in old else "new"))
            elif isinstance(old[name], str) or isinstance(new[name], str):
                if combined(old[name]) != combined(new[name]):
                    found.append((group, name, "some part"))
            else:
                parts = dict.fromkeys([*old[name], *new[name]])
                found += [(group, name, p) for p in parts if old[name].get(p) != new[name].get(p)]
    return found


def text_difference(before: Path, after: Path, renames: Renames) -> str | None:
    """The first lines that differ between two texts; empty where none does, None without texts."""
    if not (before.is_file() and after.is_file()):
        return None
    old, new = (gzip.decompress(path.read_bytes()).decode() for path in (before, after))
    old = renames(old)
    if old == new:
        return ""
    a, b = old.splitlines(), new.splitlines()
    pairs = enumerate(zip(a, b, strict=False))
    first = next((n for n, (x, y) in pairs if x != y), min(len(a), len(b)))
    low = max(0, first - 2)
    lines = difflib.unified_diff(
        a[low : first + 8], b[low : first + 8], "before", f"after, line {first + 1}", "", "", 2, ""
    )
    return "\n".join(line[:200] for line in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.golden.compare", description=__doc__)
    parser.add_argument("before", type=Path, metavar="A.json")
    parser.add_argument("after", type=Path, metavar="B.json")
    parser.add_argument("--texts", type=Path, nargs=2, metavar=("A_DIR", "B_DIR"))
    parser.add_argument("--rename", type=Path, metavar="RENAMES.txt")
    parser.add_argument("--show", type=int, default=20, help="differences shown with their lines")
    options = parser.parse_args(arguments)
    before, after = (json.loads(p.read_text()) for p in (options.before, options.after))
    old, new = (one["made"].get("versions") for one in (before, after))
    if old != new:
        print(f"versions differ: {old} and {new}")
    renames = Renames(options.rename.read_text() if options.rename else "")
    left, renamed = 0, 0
    for group, name, part in differences(before["groups"], after["groups"]):
        shown = None
        if options.texts:
            files = (text_file(folder, group, name, part) for folder in options.texts)
            shown = text_difference(*files, renames)
        if shown == "":
            renamed += 1
            continue
        left += 1
        print(f"{group}: {name}: {part}")
        if shown and left <= options.show:
            print(shown)
    entries = sum(map(len, after["groups"].values()))
    print(f"{entries} entries, {left} differences left, {renamed} equal after renames")
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
