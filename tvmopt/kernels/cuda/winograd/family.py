"""Kernel families: Winograd input and output transforms; the GEMM between is its own function."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import MemoryBound, analysed
from tvmopt.kernels.cuda.winograd.config import WinogradTransformConfig
from tvmopt.kernels.cuda.winograd.schedule import (
    DATA_NAME,
    OUT_NAME,
    emit_data,
    emit_out,
)
from tvmopt.kernels.cuda.winograd.space import Transform, transform_of
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class WinogradData(MemoryBound[Transform, WinogradTransformConfig]):
    """Input transform: a thread holds a few tiles of a few channels in registers."""

    name = DATA_NAME
    config_type = WinogradTransformConfig
    kind = "winograd"
    exclusive = True

    def match(self, workload: Workload, arch: CudaArch) -> Transform | Refusal:
        """Return the transform, if it is of this family."""
        found = analysed(workload, transform_of)
        if isinstance(found, Refusal) or found.name == self.name:
            return found
        return Refusal(f"its Winograd transform is {found.name}")

    def rank(self, form: Transform, arch: CudaArch) -> Sequence[Ranked[WinogradTransformConfig]]:
        """Return the configurations that fit a thread's registers, fastest predicted first."""
        return form.configs(arch)

    def emit(self, func: tirx.PrimFunc, hint: WinogradTransformConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return emit_data(func, hint)


class WinogradOutput(WinogradData):
    """Output transform and epilogue."""

    name = OUT_NAME

    def emit(self, func: tirx.PrimFunc, hint: WinogradTransformConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return emit_out(func, hint)
