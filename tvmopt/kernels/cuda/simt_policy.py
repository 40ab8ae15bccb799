"""SimtPolicy: a memory-bound function and a GPU -> configurations, the most promising first."""

from __future__ import annotations

import functools

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.analysis import all_facts, why_not_schedulable
from tvmopt.kernels.cuda.block_reduction.configs import block_reduction_hints
from tvmopt.kernels.cuda.column_reduction.column_walk import prepare_walk
from tvmopt.kernels.cuda.column_reduction.schedule import prepare_columns
from tvmopt.kernels.cuda.common.steps import inline_all, output_block, spatial_extent
from tvmopt.kernels.cuda.elementwise.configs import copy_hints, elementwise_hints, transpose_hints
from tvmopt.kernels.cuda.gemv.configs import gemv_hints
from tvmopt.kernels.cuda.gemv.schedule import prepare_gemv
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.int4.configs import int4_hints
from tvmopt.kernels.cuda.int4.form import prepare_int4
from tvmopt.kernels.cuda.row_reduction.configs import (
    column_reduction_hints,
    column_walk_hints,
    row_reduction_hints,
)
from tvmopt.kernels.cuda.row_reduction.form import prepare_rows
from tvmopt.kernels.cuda.window.configs import fallback_hints, window_hints
from tvmopt.kernels.cuda.winograd.configs import winograd_hints
from tvmopt.kernels.ranked import Ranked, spread


class SimtPolicy:
    """Ranks the configurations of one function that is bound by memory.

    Args:
        func: A TensorIR function, as FuseTIR leaves it.
        arch: The GPU to schedule for.

    Attributes:
        reason: Why no template takes the function; None when one does.
    """

    def __init__(self, func: tirx.PrimFunc, arch: CudaArch) -> None:
        self.func = func
        self.arch = arch
        self.reason = why_not_schedulable(func, scalars=True)

    def emit_config(self, topk: int) -> list[CudaHint]:
        """``topk`` configurations to measure; none when no template takes the function.

        The first is the most promising, which a build without measuring uses.
        """
        return [ranked.hint for ranked in spread(self.ranked, topk)]  # type: ignore[misc]

    @functools.cached_property
    def ranked(self) -> list[Ranked]:
        """Every configuration with its modelled cycles, the cheapest first."""
        if self.reason is not None:
            return []
        func, arch = self.func, self.arch
        if transforms := winograd_hints(func, arch):
            return transforms
        found = [*elementwise_hints(func, arch), *transpose_hints(func, arch)]
        found += copy_hints(func, arch)
        if not found:
            found = self._reductions()
        return sorted(found, key=lambda r: r.cycles)

    def _reductions(self) -> list[Ranked]:
        func, arch = self.func, self.arch
        found: list[Ranked] = []
        gemv = None
        try:
            if (gemv := prepare_gemv(func)) is not None:
                found += gemv_hints(gemv, arch)
                if gemv.packed > 1 and (int4 := prepare_int4(func)) is not None:
                    found += int4_hints(int4, arch)
            elif (rows := prepare_rows(func)) is not None:
                found += row_reduction_hints(rows, arch)
            if (columns := prepare_columns(func)) is not None:
                found += column_reduction_hints(columns, arch)
            if not found and (walk := prepare_walk(func)) is not None:
                found += column_walk_hints(walk, arch)
        except (ScheduleError, InternalError):
            pass  # another template may take it
        sch = s_tir.Schedule(IRModule({"main": func}))
        inline_all(sch)
        blocks = all_facts(sch)
        reductions = [f for f in blocks if f.reduction]
        last = output_block(sch)
        if len(reductions) == 1 and reductions[0].stores == 1 and len(blocks) <= 2:
            end = blocks[-1]
            if last is not None and (end.reduction or end.work == spatial_extent(reductions[0])):
                found += window_hints(sch, reductions[0], arch)
        if gemv is None:
            found += block_reduction_hints(sch, arch)
        return [*found, *fallback_hints(sch, arch)]
