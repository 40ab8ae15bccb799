"""Base class of CUDA kernel families for memory-bound workloads."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import IRModule, s_tir, tirx

from tvmopt.kernels.cuda.common.product import product_of
from tvmopt.kernels.cuda.common.steps import inline_all
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.family import Family, Form, Found
from tvmopt.kernels.workload import Inlined, Refusal, Workload

#: ``Family.kind`` of elementwise passes, which leave no work for other families.
PASS = "elementwise"
#: ``Family.kind`` of GEMV, and of other reductions.
GEMV, REDUCTION = "gemv", "reduction"
# Rows (or columns) of a GEMM up to which it counts as a memory-bound GEMV.
_FEW_ROWS = 8
_MOST_SHARED = 4
#: Measured over predicted cycles of GEMV kernels, relative to GEMM kernels, on an H200.
MEASURED_SHARE = 0.75
NOT_INLINED = Refusal("TVM refuses to inline its blocks")


class MemoryBound(Family[Form, CudaHint]):
    """A family that is ranked by memory traffic.

    It takes a GEMM only if that has few rows or columns, or if no other family takes it.
    """

    config_type = CudaHint
    share = _MOST_SHARED

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether the workload may be memory-bound and no elementwise family takes it."""
        if workload.refusal_of_kernel is not None:
            return False
        if any(f.ranked for f in found if not isinstance(f.family, MemoryBound)):
            product = workload.analysed(product_of)
            if product is None or min(product.extents[1:3]) > _FEW_ROWS:
                return False
        return self.kind == PASS or not has_candidates(found, PASS)


def has_candidates(found: Sequence[Found], *kinds: str) -> bool:
    """Return whether a family of one of ``kinds`` has candidates."""
    return any(f.ranked for f in found if f.family.kind in kinds)


def inlined(func: tirx.PrimFunc) -> Inlined:
    """Return the facts of ``func`` after inlining."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    return Inlined.of(sch)
