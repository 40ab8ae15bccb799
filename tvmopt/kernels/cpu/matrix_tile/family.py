"""GEMM and convolution on CPUs with AMX tiles."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir, tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm, prepare
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.matrix_tile.configs import matrix_tile_hints
from tvmopt.kernels.cpu.matrix_tile.schedule import NAME, emit, prepare_matrix
from tvmopt.kernels.family import Family
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload


class MatrixTile(Family[ContractionForm, CpuHint]):
    """Accumulator tiles stay in AMX tile registers over all of K; the weight is packed."""

    name = NAME
    config_type = CpuHint
    kind = "gemm"

    def match(self, workload: Workload, arch: CpuArch) -> ContractionForm | Refusal:
        """Return the only contraction, if the CPU has a tile instruction for its dtypes."""
        if workload.refusal is not None:
            return workload.refusal
        form = workload.analysed(prepare)
        if form is None or form.tile(arch) is None:
            return Refusal("the CPU has no tile instruction for it")
        return workload.analysed(prepare_matrix) or Refusal("its operands do not fit tiles")

    def rank(self, form: ContractionForm, arch: CpuArch) -> Sequence[Ranked[CpuHint]]:
        """Return the configuration space: tile blocks and loop orders, with predicted cycles."""
        return matrix_tile_hints(form, arch)

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` with the configuration ``hint``; None if it does not fit."""
        return emit(func, hint)
