"""Kernel family: reductions along contiguous memory (sum, softmax, layer norm)."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import GEMV, REDUCTION, MemoryBound, analysed
from tvmopt.kernels.cuda.row_reduction.config import CudaRowReductionConfig
from tvmopt.kernels.cuda.row_reduction.form import RowForm, prepare_rows
from tvmopt.kernels.cuda.row_reduction.schedule import NAME, emit
from tvmopt.kernels.cuda.row_reduction.space import row_reduction_hints
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class CudaRowReduction(MemoryBound[RowForm, CudaRowReductionConfig]):
    """Rows on threadIdx.y, elements of a row on threadIdx.x."""

    name = NAME
    config_type = CudaRowReductionConfig
    kind = REDUCTION

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether the workload is no GEMV, which has its own families."""
        return super().wanted(workload, found) and not any(f.family.kind == GEMV for f in found)

    def match(self, workload: Workload, arch: CudaArch) -> RowForm | Refusal:
        """Return the row reduction form of the function."""
        return analysed(workload, prepare_rows)

    def rank(self, form: RowForm, arch: CudaArch) -> Sequence[Ranked[CudaRowReductionConfig]]:
        """Return the configurations, fastest predicted first."""
        return row_reduction_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaRowReductionConfig) -> s_tir.Schedule | Refusal:
        """Emit the kernel of ``func``."""
        return emit(func, hint)
