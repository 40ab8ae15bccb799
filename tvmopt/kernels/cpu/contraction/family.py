"""Contractions on CPUs with a heuristic register tile, without a cost model."""

from __future__ import annotations

from tvm import s_tir, tirx

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import prepare
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.contraction.schedule import emit
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.workload import Refusal, Workload


class Contraction(UnmodelledFamily):
    """A heuristic register tile of the only reduction, with packing and epilogue fusion."""

    name = "contraction"
    is_reference = True
    kind = "gemm"
    beside = 1

    def match(self, workload: Workload, arch: CpuArch) -> Workload | Refusal:
        """Return the workload; a known contraction matches without a trial schedule."""
        if workload.refusal is None and workload.analysed(prepare) is not None:
            return workload
        return super().match(workload, arch)

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` with the configuration ``hint``; None unless it is one reduction."""
        return emit(func, hint, pack=True)


class ContractionInPlace(UnmodelledFamily):
    """:class:`Contraction` without packing, for accesses that TVM's layout primitives refuse."""

    name = "contraction_in_place"
    kind = "gemm"

    def emit(self, func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` with the configuration ``hint``; None unless it is one reduction."""
        return emit(func, hint, pack=False)
