"""Row reductions on CPUs: softmax, layer norm, mean, dot products along the contiguous axis."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import match_contraction
from tvmopt.kernels.cpu.common.matched import matched
from tvmopt.kernels.cpu.common.stage import busy_cores
from tvmopt.kernels.cpu.common.unmodelled import UnmodelledFamily
from tvmopt.kernels.cpu.row_reduction.schedule import emit
from tvmopt.kernels.workload import Refusal, Workload

# Cycles to reduce the lanes of a row; fit to layer norms and softmax of 128 to 1024 elements on a
# Zen 4 with AVX-512 (2026-11-30). Shuffles and additions overlap with other rows in part.
_LANES_CYCLES = 20.0


class RowReduction(UnmodelledFamily):
    """Parallelises rows; reduces each row with vectors of partial results (rfactor)."""

    name = "row_reduction"
    schedule = staticmethod(emit)
    kind = "reduction"
    beside = 2

    def instruction_cycles(self, workload: Workload, arch: CpuArch) -> float:
        """Return the predicted cycles, with the reduction of the lanes of every row."""
        rows = sum(one.work // one.reduced for one in workload.reductions)
        cores = busy_cores(sum(one.work for one in workload.reductions), arch)
        return super().instruction_cycles(workload, arch) + rows * _LANES_CYCLES / cores

    def leads(self, workload: Workload) -> bool:
        """Return whether it is a GEMM of two activations: packing pays only for many rows."""
        form = matched(workload, match_contraction)
        return not isinstance(form, Refusal) and not form.constant
