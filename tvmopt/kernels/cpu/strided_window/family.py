"""Pooling on CPUs whose vector axis is strided: NCHW with stride 2."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.strided_window.schedule import NAME, emit


class StridedWindow(UnmodelledFamily):
    """A tile of rows; the columns of the input are sorted by phase first."""

    name = NAME
    kind = "window"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None unless it is one reduction over windows."""
        return emit(func, hint)
