"""Kernel family: GEMV, or a few rows; the weight is read once."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import GEMV, MemoryBound, analysed
from tvmopt.kernels.cuda.gemv.config import GemvConfig
from tvmopt.kernels.cuda.gemv.schedule import NAME, GemvForm, emit, prepare_gemv
from tvmopt.kernels.cuda.gemv.space import gemv_hints
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class Gemv(MemoryBound[GemvForm, GemvConfig]):
    """Threads of a warp share a row of the weight; each loads vectors of it."""

    name = NAME
    config_type = GemvConfig
    kind = GEMV

    def match(self, workload: Workload, arch: CudaArch) -> GemvForm | Refusal:
        """Return the GEMV form of the function."""
        return analysed(workload, prepare_gemv)

    def rank(self, form: GemvForm, arch: CudaArch) -> Sequence[Ranked[GemvConfig]]:
        """Return the configurations, fastest predicted first."""
        return gemv_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: GemvConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return emit(func, hint)
