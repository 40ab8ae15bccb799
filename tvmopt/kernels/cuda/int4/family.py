"""Kernel family: weight-only int4 GEMV with tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import GEMV, MemoryBound, analysed
from tvmopt.kernels.cuda.gemv.schedule import prepare_gemv
from tvmopt.kernels.cuda.int4.config import Int4Config
from tvmopt.kernels.cuda.int4.form import Int4Form, prepare_int4
from tvmopt.kernels.cuda.int4.schedule import NAME, emit
from tvmopt.kernels.cuda.int4.space import int4_hints
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class Int4Gemv(MemoryBound[Int4Form, Int4Config]):
    """Warps multiply tiles of 16 weight rows with mma.sync and share the reduction."""

    name = NAME
    config_type = Int4Config
    kind = GEMV

    def match(self, workload: Workload, arch: CudaArch) -> Int4Form | Refusal:
        """Return weight, scales and activations of the int4 GEMV."""
        form = workload.refusal_of_kernel or workload.analysed(prepare_int4)
        if form is not None:
            return form
        gemv = analysed(workload, prepare_gemv)
        if isinstance(gemv, Refusal):
            return gemv
        return Refusal("not a weight of int4" if gemv.packed > 1 else "its weight is not packed")

    def rank(self, form: Int4Form, arch: CudaArch) -> Sequence[Ranked[Int4Config]]:
        """Return the configurations, fastest predicted first; none without tensor cores."""
        return int4_hints(form, arch)

    def weight(self, form: Int4Form, arch: CudaArch, found: Sequence[Found]) -> float:
        """Return measured over predicted cycles where wgmma competes."""
        return arch.costs.gemv_time_ratio if arch.has_wgmma else 1.0

    def emit(self, func: tirx.PrimFunc, hint: Int4Config) -> tirx.PrimFunc | Refusal:
        """Emit the kernel of ``func``."""
        return emit(func, hint)

    def spreads_non_finite(self, func: tirx.PrimFunc) -> bool:
        """Return True: an infinite scale multiplies the sum of its group, not each product."""
        return True

    def build_effort(self, hint: Int4Config) -> float:
        """Return the build time relative to other kernels."""
        return 1.5
