"""Contractions on CPUs with a heuristic register tile, without a cost model."""

from __future__ import annotations

import functools

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import match_contraction
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.contraction.schedule import emit
from tvmopt.kernels.workload import Refusal, Workload


class Contraction(UnmodelledFamily):
    """A heuristic register tile of the only reduction, with packing and epilogue fusion."""

    name = "contraction"
    schedule = staticmethod(emit)
    is_reference = True
    kind = "gemm"
    beside = 1

    def match(self, workload: Workload, arch: CpuArch) -> Workload | Refusal:
        """Return the workload; a known contraction matches without a trial schedule."""
        form = matched(workload, match_contraction)
        return super().match(workload, arch) if isinstance(form, Refusal) else workload


class ContractionInPlace(UnmodelledFamily):
    """:class:`Contraction` without packing, for accesses that TVM's layout primitives refuse."""

    name = "contraction_in_place"
    schedule = staticmethod(functools.partial(emit, pack=False))
    kind = "gemm"
