"""Elementwise functions and data movement on CPUs, fused into one pass over the output."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.elementwise.schedule import REDUCES, emit
from tvmopt.kernels.workload import Refusal, Workload


class Elementwise(UnmodelledFamily):
    """Inlines all blocks of a function without reductions, then parallelises and vectorises."""

    name = "elementwise"
    schedule = staticmethod(emit)
    is_reference = True
    kind = "elementwise"
    exclusive = True

    def match(self, workload: Workload, arch: CpuArch) -> Workload | Refusal:
        """Return the workload if it has no reduction."""
        if workload.refusal is not None:
            return workload.refusal
        return REDUCES if workload.reductions else workload
