"""Error messages are one printable line, whatever text they include."""

from __future__ import annotations

import pytest

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
