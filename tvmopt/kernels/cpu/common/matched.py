"""Match a workload with a cached analysis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tvm import tirx

from tvmopt.kernels.workload import Refusal, Workload

_Form = TypeVar("_Form")


def matched(
    workload: Workload, matcher: Callable[[tirx.PrimFunc], _Form | Refusal]
) -> _Form | Refusal:
    """Return the cached result of ``matcher``, or why ``workload`` cannot be scheduled."""
    if workload.refusal is not None:
        return workload.refusal
    return workload.analysed(matcher) or Refusal("TVM cannot normalise it")
