"""Column reductions on CPUs: softmax over channels, argmax across the contiguous axis."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.column_reduction.schedule import NAME, emit
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.hint import CpuHint


class ColumnReduction(UnmodelledFamily):
    """Vectorises over columns; all blocks of the function are fused at the vector loop."""

    name = NAME
    kind = "reduction"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` with the configuration ``hint``; None if blocks share no columns."""
        return emit(func, hint)
