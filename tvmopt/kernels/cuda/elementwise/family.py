"""Kernel families: elementwise functions, transposes and copies."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import PASS, MemoryBound
from tvmopt.kernels.cuda.elementwise import copy, schedule, transpose
from tvmopt.kernels.cuda.elementwise.configs import (
    copy_hints,
    elementwise_hints,
    transpose_hints,
)
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class CudaElementwise(MemoryBound[tirx.PrimFunc]):
    """A few vectors of the output a thread; all producers are inlined."""

    name = schedule.NAME
    kind = PASS

    def match(self, workload: Workload, arch: CudaArch) -> tirx.PrimFunc | Refusal:
        """Return the function itself; ranking finds out whether it fits."""
        return workload.refusal_of_kernel or workload.func

    def rank(self, form: tirx.PrimFunc, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first; none where it does not fit."""
        return elementwise_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return schedule.emit(func, hint)


class Transpose(MemoryBound[tirx.PrimFunc]):
    """Tiles go through shared memory, so that loads and stores are coalesced."""

    name = transpose.NAME
    kind = PASS

    def match(self, workload: Workload, arch: CudaArch) -> tirx.PrimFunc | Refusal:
        """Return the function itself; ranking finds out whether it fits."""
        return workload.refusal_of_kernel or workload.func

    def rank(self, form: tirx.PrimFunc, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first; none where it does not fit."""
        return transpose_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return transpose.emit(func, hint)


class Copy(MemoryBound[tirx.PrimFunc]):
    """A few vectors of 16 bytes a thread."""

    name = copy.NAME
    kind = PASS

    def match(self, workload: Workload, arch: CudaArch) -> tirx.PrimFunc | Refusal:
        """Return the function itself; ranking finds out whether it fits."""
        return workload.refusal_of_kernel or workload.func

    def rank(self, form: tirx.PrimFunc, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first; none where it does not fit."""
        return copy_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> tirx.PrimFunc | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return copy.emit(func, hint)
