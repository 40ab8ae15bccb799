"""Kernel family: weight-only int4 GEMV with tensor cores."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import GEMV, MEASURED_SHARE, MemoryBound
from tvmopt.kernels.cuda.gemv.schedule import prepare_gemv
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.int4.configs import int4_hints
from tvmopt.kernels.cuda.int4.form import Int4Form, prepare_int4
from tvmopt.kernels.cuda.int4.schedule import NAME, emit
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class Int4Gemv(MemoryBound[Int4Form]):
    """Warps multiply tiles of 16 weight rows with mma.sync and share the reduction."""

    name = NAME
    kind = GEMV

    def match(self, workload: Workload, arch: CudaArch) -> Int4Form | Refusal:
        """Return weight, scales and activations of the int4 GEMV."""
        if workload.refusal_of_kernel is not None:
            return workload.refusal_of_kernel
        gemv = workload.analysed(prepare_gemv)
        if gemv is None or gemv.packed <= 1:
            return Refusal("not a matrix-vector product of a packed weight")
        return workload.analysed(prepare_int4) or Refusal("not a weight of int4")

    def rank(self, form: Int4Form, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first; none without tensor cores."""
        return int4_hints(form, arch)

    def weight(self, form: Int4Form, arch: CudaArch, found: Sequence[Found]) -> float:
        """Return measured over predicted cycles where wgmma competes."""
        return MEASURED_SHARE if arch.has_wgmma else 1.0

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> tirx.PrimFunc | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return emit(func, hint)

    def build_effort(self, hint: CudaHint) -> float:
        """Return the build time relative to other kernels."""
        return 1.5
