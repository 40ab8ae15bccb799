"""Pooling on CPUs with a strided vector axis: NCHW with stride 2."""

from __future__ import annotations

from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.strided_window.schedule import emit


class StridedWindow(UnmodelledFamily):
    """Copies a tile of input rows with the columns deinterleaved by the stride."""

    name = "strided_window"
    schedule = staticmethod(emit)
    kind = "window"
