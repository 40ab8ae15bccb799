"""A metric of the user's own: a function in a Python file, ``file.py:function``."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tvmopt.errors import ConfigError, in_one_line

_OWN = re.compile(r"(.+\.py):([A-Za-z_]\w*)", re.DOTALL)


def is_own(text: str) -> bool:
    """Return whether a text names a function in a file."""
    return _OWN.fullmatch(text) is not None


def with_whole_path(text: str) -> str:
    """Return the text with the file's absolute path; any other text as it is. No code is run.

    Raises:
        ConfigError: When the file is none, is not Python, or has no such name.
    """
    found = _OWN.fullmatch(text)
    if found is None:
        return text
    path = Path(found[1]).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(f"metric must name an existing file, but there is none at '{path}'")
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"metric must name a Python file, but '{path}' says: {in_one_line(error)}"
            "; correct the path"
        ) from error
    names = _names_in(tree)
    if names.isdisjoint({found[2], "*"}):
        raise _no_such_function(path, found[2], names)
    return f"{path}:{found[2]}"


def _names_in(tree: ast.Module) -> set[str]:
    """Return all names that a file defines or imports anywhere; ``*`` for all names of a module."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
    return names


def _no_such_function(path: Path, name: str, names: Iterable[str]) -> ConfigError:
    defined = sorted(one for one in names if not one.startswith("_"))
    return ConfigError(
        f"metric must name a function of '{path}', but it has no {name!r}; it has "
        f"{', '.join(defined)[:200] or 'nothing'}"
    )


def file_of(text: str) -> Path | None:
    """Return the file that a text names; None for any other text."""
    found = _OWN.fullmatch(text)
    return Path(found[1]) if found else None


def load_own(text: str) -> Callable[[Any, Any], Any]:
    """Run the user's file, and return his function of outputs and labels.

    Raises:
        ConfigError: When the file does not run, or has no such function.
    """
    found = _OWN.fullmatch(text)
    assert found is not None, text
    path = Path(found[1])
    spec = importlib.util.spec_from_file_location("tvmopt_own_metric", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's file
        raise ConfigError(
            f"metric must name a file that runs, but '{path}' says: {type(error).__name__}: "
            f"{in_one_line(error)}"
            "; correct the file"
        ) from error
    function = getattr(module, found[2], None)
    if not callable(function):
        raise _no_such_function(path, found[2], vars(module))
    return function
