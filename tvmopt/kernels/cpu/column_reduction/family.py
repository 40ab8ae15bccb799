"""Column reductions on CPUs: softmax over channels, argmax across the contiguous axis."""

from __future__ import annotations

from tvmopt.kernels.cpu.column_reduction.schedule import emit
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily


class ColumnReduction(UnmodelledFamily):
    """Vectorises over columns; all blocks of the function are fused at the vector loop."""

    name = "column_reduction"
    schedule = staticmethod(emit)
    kind = "reduction"
