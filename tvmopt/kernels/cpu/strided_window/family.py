"""Pooling on CPUs with a strided vector axis: NCHW with stride 2."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.strided_window.schedule import NAME, emit


class StridedWindow(UnmodelledFamily):
    """Copies a tile of input rows with the columns deinterleaved by the stride."""

    name = NAME
    kind = "window"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` with the configuration ``hint``; None unless it is strided pooling."""
        return emit(func, hint)
