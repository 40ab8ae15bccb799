"""Any function of leaf blocks on CPUs: each block on its own."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.fallback.schedule import NAME, emit
from tvmopt.kernels.cpu.hint import CpuHint


class Fallback(UnmodelledFamily):
    """Parallel outer loops and a vectorised inner loop, block by block."""

    name = NAME
    is_reference = True
    kind = "any"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule each block of ``func`` as far as TVM lets it."""
        return emit(func, hint)
