"""Run a sample of a test's cases by default, and all of them with ``-m slow`` in addition."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], step: int) -> list[Any]:
    """Return the cases for ``parametrize``; all but each ``step``-th are marked slow."""
    return [case if number % step == 0 else _slow(case) for number, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
