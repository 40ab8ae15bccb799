"""Kernel families: reductions across contiguous memory (over an outer axis)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.column_reduction import column_walk, schedule
from tvmopt.kernels.cuda.column_reduction.column_walk import WalkForm, prepare_walk
from tvmopt.kernels.cuda.column_reduction.config import (
    ColumnWalkConfig,
    CudaColumnReductionConfig,
)
from tvmopt.kernels.cuda.column_reduction.schedule import ColumnForm, prepare_columns
from tvmopt.kernels.cuda.column_reduction.space import (
    column_reduction_hints,
    column_walk_hints,
)
from tvmopt.kernels.cuda.common.memory_bound import (
    GEMV,
    REDUCTION,
    MemoryBound,
    analysed,
    has_candidates,
)
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class CudaColumnReduction(MemoryBound[ColumnForm, CudaColumnReductionConfig]):
    """Columns on threadIdx.x, vectorised; the reduction on threadIdx.y and thread blocks."""

    name = schedule.NAME
    config_type = CudaColumnReductionConfig
    kind = REDUCTION

    def match(self, workload: Workload, arch: CudaArch) -> ColumnForm | Refusal:
        """Return the column reduction form of the function."""
        return analysed(workload, prepare_columns)

    def rank(self, form: ColumnForm, arch: CudaArch) -> Sequence[Ranked[CudaColumnReductionConfig]]:
        """Return the configurations, fastest predicted first."""
        return column_reduction_hints(form, arch)

    def emit(
        self, func: tirx.PrimFunc, hint: CudaColumnReductionConfig
    ) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return schedule.emit(func, hint)


class CudaColumnWalk(MemoryBound[WalkForm, ColumnWalkConfig]):
    """Several reductions over the same columns: a thread walks its column serially."""

    name = column_walk.NAME
    config_type = ColumnWalkConfig
    kind = REDUCTION

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether no other reduction family has candidates."""
        return super().wanted(workload, found) and not has_candidates(found, GEMV, REDUCTION)

    def match(self, workload: Workload, arch: CudaArch) -> WalkForm | Refusal:
        """Return the column walk form of the function."""
        return analysed(workload, prepare_walk)

    def rank(self, form: WalkForm, arch: CudaArch) -> Sequence[Ranked[ColumnWalkConfig]]:
        """Return the configurations, fastest predicted first."""
        return column_walk_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: ColumnWalkConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return column_walk.emit(func, hint)
