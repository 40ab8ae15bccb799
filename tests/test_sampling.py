"""The mark ``sample(n)``: which cases run by default, and which with ``-m slow``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.sampling import evenly_spaced

_SETTINGS = """
[pytest]
addopts = --strict-markers -m 'not slow and not gpu'
markers =
    sample(n): n cases
    slow: slow
    gpu: gpu
"""
_HOOK = """
import pytest
from tests.sampling import mark_slow

@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    mark_slow(items)
"""
_TESTS = """
import pytest

pytestmark = pytest.mark.sample(2)

@pytest.mark.parametrize("x", range(5))
def test_of_module(x): pass

@pytest.mark.sample(3)
@pytest.mark.parametrize("x", [*range(5), pytest.param(5, marks=pytest.mark.slow),
                               pytest.param(6, marks=pytest.mark.gpu)])
def test_nearest(x): pass

@pytest.mark.parametrize("y", "ab")
class TestOuter:
    @pytest.mark.parametrize("x", range(3))
    def test_stacked(self, x, y): pass

def test_plain(): pass
"""


@pytest.fixture
def collect(tmp_path, run_python):
    """Return a function: the names of the tests that pytest selects with further arguments."""
    (tmp_path / "pytest.ini").write_text(_SETTINGS)
    (tmp_path / "conftest.py").write_text(_HOOK)
    (tmp_path / "test_it.py").write_text(_TESTS)

    def run(*args: str, status: int = 0) -> list[str]:
        command = ("-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *args)
        done: subprocess.CompletedProcess = run_python(
            *command, cwd=tmp_path, PYTHONPATH=str(ROOT), PYTEST_ADDOPTS=None
        )
        assert done.returncode == status, done.stdout + done.stderr
        lines = done.stdout.splitlines() + done.stderr.splitlines()
        return [line.rpartition("::")[2] for line in lines if "::" in line]

    return run


def test_cases_by_default(collect) -> None:
    assert collect() == [
        *("test_of_module[0]", "test_of_module[4]"),
        *("test_nearest[0]", "test_nearest[2]", "test_nearest[4]"),
        *("test_stacked[0-a]", "test_stacked[2-b]"),
        "test_plain",
    ]


def test_the_others_are_slow(collect) -> None:
    assert collect("-m", "slow") == [
        *("test_of_module[1]", "test_of_module[2]", "test_of_module[3]"),
        *("test_nearest[1]", "test_nearest[3]", "test_nearest[5]"),
        *("test_stacked[0-b]", "test_stacked[1-a]", "test_stacked[1-b]", "test_stacked[2-a]"),
    ]


def test_a_case_that_is_named_runs(collect) -> None:
    assert collect("test_it.py::test_of_module[3]") == ["test_of_module[3]"]


def test_a_mark_without_a_number_is_an_error(collect, tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("import pytest\n@pytest.mark.sample\ndef test(): pass")
    assert "test" in collect(status=4)


@pytest.mark.parametrize(
    ("count", "size", "places"),
    [(5, 1, {0}), (5, 2, {0, 4}), (6, 3, {0, 2, 5}), (12, 4, {0, 3, 7, 11}), (2, 3, {0, 1})],
)
def test_places(count: int, size: int, places: set[int]) -> None:
    assert evenly_spaced(count, size) == places
