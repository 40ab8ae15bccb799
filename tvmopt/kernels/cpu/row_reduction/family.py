"""Reductions along contiguous memory on CPUs: softmax, layer norm, mean, dot products."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.common.contraction_form import prepare
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.row_reduction.schedule import NAME, emit
from tvmopt.kernels.workload import Workload


class RowReduction(UnmodelledFamily):
    """Rows in parallel; vectorised partial results and vectorised stages within a row."""

    name = NAME
    kind = "reduction"
    beside = 2

    def leads(self, workload: Workload) -> bool:
        """Return whether it is a GEMM of activations: packing pays for many rows only."""
        form = workload.analysed(prepare)
        return form is not None and not form.constant

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None where a reduction is not along memory."""
        return emit(func, hint)
