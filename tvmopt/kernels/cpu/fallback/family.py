"""Fallback on CPUs for any function of leaf blocks: each block has its own loop nest."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.fallback.schedule import emit
from tvmopt.kernels.workload import Refusal, Workload


class Fallback(UnmodelledFamily):
    """Parallelises the outer loops and vectorises the inner loop of each block."""

    name = "fallback"
    schedule = staticmethod(emit)
    is_reference = True
    kind = "any"

    def match(self, workload: Workload, arch: CpuArch) -> Workload | Refusal:
        """Return the workload; nothing needs to be emitted to know that it can be scheduled."""
        return workload.refusal or workload
