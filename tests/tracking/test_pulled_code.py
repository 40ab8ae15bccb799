"""The code in a pulled bundle imports only modules that the bundle contains.

Where tvmopt is installed, Python would import a missing module from there, and hide the error.
"""

from __future__ import annotations

import ast
from pathlib import Path

from tvmopt.tracking.registry.pull import _RUNTIME_FILES

PACKAGE = Path(__file__).parents[2] / "tvmopt"


def _imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _copied() -> set[Path]:
    found = [PACKAGE / name for name in _RUNTIME_FILES]
    return {file for path in found for file in (path.rglob("*.py") if path.is_dir() else [path])}


def test_bundles_hold_all_that_their_code_imports() -> None:
    copied = _copied()
    missing = set()
    for path in copied:
        for name in _imports(path):
            parts = name.split(".")
            if parts[0] != "tvmopt":
                continue
            module = PACKAGE.joinpath(*parts[1:-1]).with_suffix(".py")  # an attribute, not a module
            whole = PACKAGE.joinpath(*parts[1:]).with_suffix(".py")
            for file in (module, whole, PACKAGE.joinpath(*parts[1:]) / "__init__.py"):
                if file.is_file() and file not in copied:
                    missing.add(f"{path.relative_to(PACKAGE)} imports {name}")
    assert not missing
