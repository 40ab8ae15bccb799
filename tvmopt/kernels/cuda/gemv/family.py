"""Kernel family: GEMV, or a few rows; the weight is read once."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import GEMV, MEASURED_SHARE, MemoryBound
from tvmopt.kernels.cuda.gemv.configs import gemv_hints
from tvmopt.kernels.cuda.gemv.schedule import NAME, GemvForm, emit, prepare_gemv
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class Gemv(MemoryBound[GemvForm]):
    """Threads of a warp share a row of the weight; each loads vectors of it."""

    name = NAME
    kind = GEMV

    def match(self, workload: Workload, arch: CudaArch) -> GemvForm | Refusal:
        """Return the GEMV form of the function."""
        if workload.refusal_of_kernel is not None:
            return workload.refusal_of_kernel
        return workload.analysed(prepare_gemv) or Refusal("not a matrix-vector product")

    def rank(self, form: GemvForm, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first."""
        return gemv_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return emit(func, hint)

    def weight(self, form: GemvForm, arch: CudaArch, found: Sequence[Found]) -> float:
        """Return measured over predicted cycles where wgmma competes."""
        return MEASURED_SHARE if arch.has_wgmma else 1.0
