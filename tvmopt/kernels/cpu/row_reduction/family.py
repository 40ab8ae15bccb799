"""Row reductions on CPUs: softmax, layer norm, mean, dot products along the contiguous axis."""

from __future__ import annotations

from tvmopt.kernels.cpu.common.contraction_form import match_contraction
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.row_reduction.schedule import emit
from tvmopt.kernels.workload import Refusal, Workload


class RowReduction(UnmodelledFamily):
    """Parallelises rows; reduces each row with vectors of partial results (rfactor)."""

    name = "row_reduction"
    schedule = staticmethod(emit)
    kind = "reduction"
    beside = 2

    def leads(self, workload: Workload) -> bool:
        """Return whether it is a GEMM of two activations: packing pays only for many rows."""
        form = matched(workload, match_contraction)
        return not isinstance(form, Refusal) and not form.constant
