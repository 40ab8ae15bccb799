"""Kernel families: pooling and depthwise convolution; fallback for any function of leaf blocks."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import BlockFacts
from tvmopt.kernels.cuda.common.memory_bound import NOT_INLINED, MemoryBound, inlined
from tvmopt.kernels.cuda.common.steps import output_block, spatial_extent
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.window.configs import fallback_hints, window_hints
from tvmopt.kernels.cuda.window.schedule import (
    FALLBACK_NAME,
    WINDOW_NAME,
    emit_fallback,
    emit_window,
)
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Inlined, Refusal, Workload


class CudaWindow(MemoryBound[tuple[Inlined, BlockFacts]]):
    """One thread computes a vector of outputs, with the pooling window unrolled."""

    name = WINDOW_NAME
    kind = "window"

    def match(self, workload: Workload, arch: CudaArch) -> tuple[Inlined, BlockFacts] | Refusal:
        """Return the inlined function and its only reduction."""
        if workload.refusal_of_kernel is not None:
            return workload.refusal_of_kernel
        found = workload.analysed(inlined)
        if found is None:
            return NOT_INLINED
        reductions = [facts for facts in found.blocks if facts.reduction]
        if len(reductions) != 1 or reductions[0].stores != 1 or len(found.blocks) > 2:
            return Refusal("not one reduction and an epilogue")
        end = found.blocks[-1]
        whole = end.reduction or end.work == spatial_extent(reductions[0])
        if output_block(found.sch) is None or not whole:
            return Refusal("its epilogue has another shape than its reduction")
        return found, reductions[0]

    def rank(self, form: tuple[Inlined, BlockFacts], arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return the configurations, fastest predicted first."""
        found, facts = form
        return window_hints(found.sch, facts, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return emit_window(func, hint)


class CudaFallback(MemoryBound[Inlined]):
    """A kernel for every block, one thread for each output element."""

    name = FALLBACK_NAME
    kind = "any"

    def match(self, workload: Workload, arch: CudaArch) -> Inlined | Refusal:
        """Return the inlined function."""
        return workload.refusal_of_kernel or workload.analysed(inlined) or NOT_INLINED

    def rank(self, form: Inlined, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return a configuration for each thread block size, fastest predicted first."""
        return fallback_hints(form.sch, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit a kernel for every block."""
        return emit_fallback(func, hint)
