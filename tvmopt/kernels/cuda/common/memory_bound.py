"""Base of CUDA families whose workloads are bound by memory, not by arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import IRModule, s_tir, tirx

from tvmopt.kernels.cuda.common.product import product_of
from tvmopt.kernels.cuda.common.steps import inline_all
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.family import Family, Form, Found
from tvmopt.kernels.workload import Inlined, Workload

#: ``Family.kind`` of passes without a reduction, which leave nothing to do for other families.
PASS = "elementwise"
#: ``Family.kind`` of matrix-vector products, and of other reductions.
GEMV, REDUCTION = "gemv", "reduction"
# Rows of a GEMM up to which it is rather a matrix-vector product, bound by memory.
_FEW_ROWS = 8
_MOST_SHARED = 4
#: Measured over predicted cycles of matrix-vector kernels beside GEMM kernels, on an H200.
MEASURED_SHARE = 0.75


class MemoryBound(Family[Form, CudaHint]):
    """A family that is ranked by memory traffic.

    It is asked about a GEMM only where that has few rows or columns, or no other family takes it.
    """

    share = _MOST_SHARED
    memory_bound = True

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether the workload may be bound by memory, and is no pass of another family."""
        if workload.refusal_of_kernel is not None:
            return False
        if any(f.ranked for f in found if not getattr(f.family, "memory_bound", False)):
            product = workload.analysed(product_of)
            if product is None or min(product.extents[1:3]) > _FEW_ROWS:
                return False
        return self.kind == PASS or not has_candidates(found, PASS)


def has_candidates(found: Sequence[Found], *kinds: str) -> bool:
    """Return whether a family of one of ``kinds`` has candidates."""
    return any(f.ranked for f in found if f.family.kind in kinds)


def inlined(func: tirx.PrimFunc) -> Inlined:
    """Return the facts of ``func`` with everything inlined that can be."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    return Inlined.of(sch)
