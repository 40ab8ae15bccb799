"""The list of node cases that do not pass by compilation, each with its reason.

``python -m tests.onnx_cases.listed FILE ...`` writes it from JSON files of the runner.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.fuzz.outcome import RIGHT
from tests.onnx_cases.run import CONSTANT, FOREIGN

LIST = Path(__file__).parent / "not_compiled.json"
_COMPILED = (RIGHT, CONSTANT)
_LONGEST = 160


def read_list() -> dict[str, dict[str, str]]:
    """Return kind and reason of each listed case, by name."""
    found: dict[str, dict[str, str]] = json.loads(LIST.read_text())
    return found


def differences(
    found: Iterable[Mapping[str, Any]], listed: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return a line for each outcome that the list does not say; ``foreign`` ones are left out."""
    lines = []
    for one in found:
        was, now = listed.get(one["name"], {}).get("kind", "compiled"), _kind(one)
        if now not in (was, FOREIGN):
            why = f" ({one['reason'][:_LONGEST]})" if one["reason"] else ""
            lines.append(f"{one['name']}: was {was}, is {now}{why}")
    return lines


def _kind(one: Mapping[str, Any]) -> str:
    return "compiled" if one["kind"] in _COMPILED else str(one["kind"])


def main(files: list[str]) -> int:
    """Write the list; return 0."""
    every = [one for file in files for one in json.loads(Path(file).read_text())]
    rows = {
        one["name"]: {"kind": one["kind"], "why": one["reason"][:_LONGEST]}
        for one in every
        if one["kind"] not in (*_COMPILED, FOREIGN)
    }
    LIST.write_text(json.dumps(dict(sorted(rows.items())), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
