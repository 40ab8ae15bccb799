"""Kernel families: elementwise functions, transposes and copies."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.inlining import inlined_elementwise
from tvmopt.kernels.cuda.common.memory_bound import PASS, MemoryBound, analysed
from tvmopt.kernels.cuda.elementwise import copy, schedule, transpose
from tvmopt.kernels.cuda.elementwise.config import (
    CopyConfig,
    CudaElementwiseConfig,
    TransposeConfig,
)
from tvmopt.kernels.cuda.elementwise.copy import CopyForm, prepare_copy
from tvmopt.kernels.cuda.elementwise.space import (
    copy_hints,
    elementwise_hints,
    transpose_hints,
)
from tvmopt.kernels.cuda.elementwise.transpose import TransposeForm, prepare_transpose
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class CudaElementwise(MemoryBound[s_tir.Schedule, CudaElementwiseConfig]):
    """A few vectors of the output a thread; all producers are inlined."""

    name = schedule.NAME
    config_type = CudaElementwiseConfig
    kind = PASS

    def match(self, workload: Workload, arch: CudaArch) -> s_tir.Schedule | Refusal:
        """Return a schedule of the function, everything inlined."""
        return analysed(workload, inlined_elementwise)

    def rank(self, form: s_tir.Schedule, arch: CudaArch) -> Sequence[Ranked[CudaElementwiseConfig]]:
        """Return the configurations, fastest predicted first."""
        return elementwise_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaElementwiseConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return schedule.emit(func, hint)


class Transpose(MemoryBound[TransposeForm, TransposeConfig]):
    """Tiles go through shared memory, so that loads and stores are coalesced."""

    name = transpose.NAME
    config_type = TransposeConfig
    kind = PASS

    def match(self, workload: Workload, arch: CudaArch) -> TransposeForm | Refusal:
        """Return the transpose form of the function."""
        return analysed(workload, prepare_transpose)

    def rank(self, form: TransposeForm, arch: CudaArch) -> Sequence[Ranked[TransposeConfig]]:
        """Return the configurations, fastest predicted first."""
        return transpose_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: TransposeConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return transpose.emit(func, hint)


class Copy(MemoryBound[CopyForm, CopyConfig]):
    """A few vectors of 16 bytes a thread."""

    name = copy.NAME
    config_type = CopyConfig
    kind = PASS

    def match(self, workload: Workload, arch: CudaArch) -> CopyForm | Refusal:
        """Return the copy form of the function."""
        return analysed(workload, prepare_copy)

    def rank(self, form: CopyForm, arch: CudaArch) -> Sequence[Ranked[CopyConfig]]:
        """Return the configurations, fastest predicted first."""
        return copy_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CopyConfig) -> tirx.PrimFunc | Refusal:
        """Emit the kernel of ``func``."""
        return copy.emit(func, hint)
