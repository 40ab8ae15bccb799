"""Fallback on CPUs for any function of leaf blocks: each block has its own loop nest."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.fallback.schedule import NAME, emit
from tvmopt.kernels.cpu.hint import CpuHint


class Fallback(UnmodelledFamily):
    """Parallelises the outer loops and vectorises the inner loop of each block."""

    name = NAME
    is_reference = True
    kind = "any"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule each block of ``func`` as far as TVM's primitives allow."""
        return emit(func, hint)
