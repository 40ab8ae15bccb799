"""Reductions across contiguous memory on CPUs: softmax over channels, argmax."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.column_reduction.schedule import NAME, emit
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.hint import CpuHint


class ColumnReduction(UnmodelledFamily):
    """Vectors of columns in parallel; all blocks of the function run vector by vector."""

    name = NAME
    kind = "reduction"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None where its blocks share no columns."""
        return emit(func, hint)
