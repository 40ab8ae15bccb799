"""Base class of CUDA kernel families for memory-bound workloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from tvm import tirx

from tvmopt.kernels.cuda.common.gemm_form import gemm_form_of
from tvmopt.kernels.family import ConfigHint, Family, Form, Found
from tvmopt.kernels.workload import Refusal, Workload

#: ``Family.kind`` of elementwise passes, which leave no work for other families.
PASS = "elementwise"
#: ``Family.kind`` of GEMV, and of other reductions.
GEMV, REDUCTION = "gemv", "reduction"
# Rows (or columns) of a GEMM up to which it counts as a memory-bound GEMV.
_FEW_ROWS = 8
_MOST_SHARED = 4
# Why an analysis in which a schedule primitive failed found nothing.
_NOT_ANALYSED = Refusal("TVM refuses a schedule primitive of the analysis")
_T = TypeVar("_T")


class MemoryBound(Family[Form, ConfigHint], Generic[Form, ConfigHint]):
    """A family that is ranked by memory traffic.

    It takes a GEMM only if that has few rows or columns, or if no other family takes it.
    """

    share = _MOST_SHARED

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether the workload may be memory-bound and no elementwise family takes it."""
        if workload.refusal_of_kernel is not None:
            return False
        if any(f.ranked for f in found if not isinstance(f.family, MemoryBound)):
            gemm = gemm_form_of(workload)
            if isinstance(gemm, Refusal) or min(gemm.extents[1:3]) > _FEW_ROWS:
                return False
        return self.kind == PASS or not has_candidates(found, PASS)


def has_candidates(found: Sequence[Found], *kinds: str) -> bool:
    """Return whether a family of one of ``kinds`` has candidates."""
    return any(f.ranked for f in found if f.family.kind in kinds)


def analysed(workload: Workload, analysis: Callable[[tirx.PrimFunc], _T | Refusal]) -> _T | Refusal:
    """Return the cached result of ``analysis``, or why the workload cannot be analysed."""
    return workload.refusal_of_kernel or workload.analysed(analysis) or _NOT_ANALYSED
