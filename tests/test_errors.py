"""Error messages are one printable line, whatever text they include."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection
from pathlib import Path

import pytest

import tvmopt
from tvmopt.errors import (
    BuildError,
    LimitError,
    ModelError,
    StageFailedError,
    TvmoptError,
    after_retry,
    in_one_line,
)
from tvmopt.printable import is_printable, one_line, shown


@pytest.mark.parametrize("kind", [TvmoptError, ModelError, StageFailedError, LimitError])
def test_a_message_keeps_itself_on_one_line(kind):
    error = kind("first\n  second\x1b[31m\u202e 'a  b'")
    assert str(error) == "first second\\x1b[31m\\u202e 'a  b'"
    assert len(str(kind("x" * 100_000))) < 5000


def test_what_libraries_say_is_one_line():
    assert in_one_line(ValueError("a\n\tb\x00")) == "a b\\x00"
    assert in_one_line(KeyError()) == "KeyError"
    assert len(in_one_line(ValueError("x" * 1000))) == 300


def test_an_error_of_a_retry_is_behind_the_first_error():
    both = after_retry(BuildError("x" * 5000), "another way", ModelError("y" * 5000))
    assert type(both) is BuildError
    assert "x; tried next: another way, but y" in str(both)
    assert str(both).endswith("y")
    again = after_retry(BuildError("no space"), "another way", ModelError("it says: no space"))
    assert (type(again), str(again)) == (BuildError, "it says: no space")


@pytest.mark.parametrize("text", ["größe 层", "a  b", "", "\\x1b"])
def test_what_prints_stays(text):
    assert one_line(text) == text


def test_values_are_shown_short():
    assert shown("a\nb") == r"'a\nb'"
    assert len(shown(list(range(10_000)))) < 110
    assert shown(10**5000) == "a number of too many digits"
    assert is_printable(shown("\ud800"))


def test_an_error_that_quotes_a_library_says_what_to_do_next() -> None:
    """The rule and the value are not enough where a library says what is wrong, in its terms."""
    trees = {p: ast.parse(p.read_text()) for p in Path(tvmopt.__file__).parent.rglob("*.py")}
    kinds = _names_of_errors(trees.values())
    silent = []
    for path, tree in sorted(trees.items()):
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or not call.args:
                continue
            name, message = getattr(call.func, "id", ""), ast.unparse(call.args[0])
            quotes = re.search(r"\b(?:in_one_line|last_line)\(", message)
            if name in kinds and quotes and not re.search(r"; |cure|unknown\}", message):
                silent.append(f"{path.name}:{call.lineno}: {message[:120]}")
    assert not silent, "\n".join(silent)


def _names_of_errors(trees: Collection[ast.Module]) -> set[str]:
    """Return the names of all classes that are derived from :class:`TvmoptError`, and its own."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }  # fmt: skip
    found = {TvmoptError.__name__}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found
