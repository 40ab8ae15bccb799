"""Row reductions on CPUs: softmax, layer norm, mean, dot products along the contiguous axis."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.common.contraction_form import prepare
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.row_reduction.schedule import NAME, emit
from tvmopt.kernels.workload import Workload


class RowReduction(UnmodelledFamily):
    """Parallelises rows; reduces each row with vectors of partial results (rfactor)."""

    name = NAME
    kind = "reduction"
    beside = 2

    def leads(self, workload: Workload) -> bool:
        """Return whether it is a GEMM of two activations: packing pays only for many rows."""
        form = workload.analysed(prepare)
        return form is not None and not form.constant

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` with the configuration ``hint``; None unless it reduces rows."""
        return emit(func, hint)
