"""Reductions along contiguous memory on CUDA GPUs: sums, softmax, layer norm."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.cuda.common.memory_bound import GEMV, REDUCTION, MemoryBound
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.row_reduction.configs import row_reduction_hints
from tvmopt.kernels.cuda.row_reduction.form import RowForm, prepare_rows
from tvmopt.kernels.cuda.row_reduction.schedule import NAME, emit
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class CudaRowReduction(MemoryBound[RowForm]):
    """Rows to the y threads of a block, the elements of a row to the x threads."""

    name = NAME
    kind = REDUCTION

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether it is no matrix-vector product, which has families of its own."""
        return super().wanted(workload, found) and not any(f.family.kind == GEMV for f in found)

    def match(self, workload: Workload, arch: CudaArch) -> RowForm | Refusal:
        """Return the function in the form that the kernel computes."""
        if workload.refusal_of_kernel is not None:
            return workload.refusal_of_kernel
        return workload.analysed(prepare_rows) or Refusal("its reductions are not along memory")

    def rank(self, form: RowForm, arch: CudaArch) -> Sequence[Ranked[CudaHint]]:
        """Return every configuration that may pay."""
        return row_reduction_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
        """Emit the kernel of ``func``; None where it does not fit."""
        return emit(func, hint)
