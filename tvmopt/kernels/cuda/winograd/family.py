"""Kernel families: Winograd input and output transforms; the GEMM between is its own function."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import MemoryBound
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.winograd.configs import Transform, transform_of
from tvmopt.kernels.cuda.winograd.schedule import (
    DATA_NAME,
    OUT_NAME,
    emit_data,
    emit_out,
)
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class WinogradData(MemoryBound[Transform]):
    """Input transform: a thread holds a few tiles of a few channels in registers."""

    name = DATA_NAME
    kind = "winograd"
    exclusive = True

    def match(self, workload: Workload, arch: CudaArch) -> Transform | Refusal:
        """Return the transform, if it is of this family."""
        if workload.refusal_of_kernel is not None:
            return workload.refusal_of_kernel
        found = workload.analysed(transform_of)
        return found if found and found.name == self.name else Refusal("not such a transform")

    def rank(self, form: Transform, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations that fit a thread's registers, fastest predicted first."""
        return form.configs(arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return emit_data(func, hint)


class WinogradOutput(WinogradData):
    """Output transform and epilogue."""

    name = OUT_NAME

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return emit_out(func, hint)
