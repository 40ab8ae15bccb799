"""Cache of analyses that return a schedule: each caller gets a copy, which it may change."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from tvm import s_tir, tirx

from tvmopt.kernels.workload import Refusal

_T = TypeVar("_T")
_Analysis = Callable[[tirx.PrimFunc], tuple[s_tir.Schedule, _T] | Refusal]

# Functions whose schedules are kept. The families match a function one after the other, and then
# its configurations are emitted, so that a few are enough.
_KEPT = 32


def keep_schedule(analyse: _Analysis[_T]) -> _Analysis[_T]:
    """Return ``analyse`` with a cache by identity of the function.

    Random variables of the original, such as an ``SBlockRV``, are valid in a copy.
    """
    kept = functools.lru_cache(maxsize=_KEPT)(analyse)

    @functools.wraps(analyse)
    def copied(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, _T] | Refusal:
        found = kept(func)
        return found if isinstance(found, Refusal) else (found[0].copy(), found[1])

    return copied
