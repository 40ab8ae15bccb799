"""Kernel families: pooling and depthwise convolution; fallback for any function of leaf blocks."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts
from tvmopt.kernels.cuda.common.inlining import inlined, only_reduction
from tvmopt.kernels.cuda.common.memory_bound import MemoryBound, analysed
from tvmopt.kernels.cuda.window.config import CudaFallbackConfig, CudaWindowConfig
from tvmopt.kernels.cuda.window.schedule import (
    FALLBACK_NAME,
    WINDOW_NAME,
    emit_fallback,
    emit_window,
)
from tvmopt.kernels.cuda.window.space import fallback_hints, window_hints
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Inlined, Refusal, Workload


class CudaWindow(MemoryBound[tuple[s_tir.Schedule, BlockFacts], CudaWindowConfig]):
    """One thread computes a vector of outputs, with the pooling window unrolled."""

    name = WINDOW_NAME
    config_type = CudaWindowConfig
    kind = "window"

    def match(
        self, workload: Workload, arch: CudaArch
    ) -> tuple[s_tir.Schedule, BlockFacts] | Refusal:
        """Return the inlined function and its only reduction."""
        found = analysed(workload, inlined)
        if isinstance(found, Refusal):
            return found
        facts = only_reduction(found.sch, found.blocks)
        return facts if isinstance(facts, Refusal) else (found.sch, facts)

    def rank(
        self, form: tuple[s_tir.Schedule, BlockFacts], arch: CudaArch
    ) -> Sequence[Ranked[CudaWindowConfig]]:
        """Return the configurations, fastest predicted first."""
        sch, facts = form
        return window_hints(sch, facts, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaWindowConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return emit_window(func, hint)


class CudaFallback(MemoryBound[Inlined, CudaFallbackConfig]):
    """A kernel for every block, one thread for each output element."""

    name = FALLBACK_NAME
    config_type = CudaFallbackConfig
    kind = "any"

    def match(self, workload: Workload, arch: CudaArch) -> Inlined | Refusal:
        """Return the inlined function."""
        return analysed(workload, inlined)

    def rank(self, form: Inlined, arch: CudaArch) -> Sequence[Ranked[CudaFallbackConfig]]:
        """Return a configuration for each thread block size, fastest predicted first."""
        return fallback_hints(form.sch, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaFallbackConfig) -> s_tir.Schedule:
        """Emit a kernel for every block."""
        return emit_fallback(func, hint)
