"""CPU families without a cost model: a few configurations in a fixed order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.device.cpu import CpuArch
from tvmopt.errors import last_line
from tvmopt.kernels.cpu.common.cost import stream_cycles
from tvmopt.kernels.cpu.common.cpu_family import CpuFamily
from tvmopt.kernels.cpu.common.vector_cycles import vector_cycles
from tvmopt.kernels.cpu.hint import MAX_VECTOR_REGISTERS, TASKS_PER_CORE, CpuHint
from tvmopt.kernels.family import Found
from tvmopt.kernels.ranked import Ranked
from tvmopt.kernels.workload import Refusal, Workload

# (tasks per core, longest vector in registers), in the order to try them.
_VARIATIONS = ((8, 4), (1, 4), (8, 1), (2, 4), (0, 4), (0, 1), (4, 2), (1, 1))
# Time of a contraction without a register tile by that of its multiply-adds at peak: a convolution
# (256 -> 512 channels, 508 x 1, 5 x 1, NCHW) took 3.6 times as long on a Zen 3.
_UNTILED_SLOWDOWN = 3.5
# Arguments of at most this many bytes: the cost model assumes one core.
_ONE_CORE_BYTES = 64 * 1024


@dataclasses.dataclass(frozen=True)
class UnmodelledConfig(CpuHint):
    """Parallelisation and vectorisation of loop nests without a register tile.

    Attributes:
        tasks_per_core: Parallel tasks per core; 0 keeps the loops serial.
        vector_registers: Longest vector, in registers.
    """

    tasks_per_core: int = TASKS_PER_CORE
    vector_registers: int = MAX_VECTOR_REGISTERS

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: the family."""
        return (self.template,)


class UnmodelledFamily(CpuFamily[Workload, UnmodelledConfig]):
    """A family that matches if its default configuration can be emitted."""

    config_type = UnmodelledConfig
    has_cost_model = False

    def wanted(self, workload: Workload, found: Sequence[Found]) -> bool:
        """Return whether to match: if ``beside`` > 0, or if no modelled family has candidates."""
        return self.beside > 0 or not any(f.family.has_cost_model and f.ranked for f in found)

    def match(self, workload: Workload, arch: CpuArch) -> Workload | Refusal:
        """Return the workload itself if the family can schedule it."""
        if workload.refusal is not None:
            return workload.refusal
        try:
            made = self.emit(workload.func, UnmodelledConfig(self.name, arch))
        except (ScheduleError, InternalError) as error:
            return Refusal(f"{self.name} refused: {last_line(error, None)}")
        return made if isinstance(made, Refusal) else workload

    def instruction_cycles(self, workload: Workload, arch: CpuArch) -> float:
        """Return the predicted cycles of all instructions, on the busiest core."""
        return vector_cycles(workload, arch)

    def rank(self, form: Workload, arch: CpuArch) -> Sequence[Ranked[UnmodelledConfig]]:
        """Return the configurations, the default first."""
        cycles = max(argument_cycles(form, arch), self.instruction_cycles(form, arch))
        return [
            Ranked(
                UnmodelledConfig(self.name, arch, tasks, registers),
                cycles * (1.0 + 0.01 * place) + 1.0,
            )
            for place, (tasks, registers) in enumerate(_VARIATIONS)
        ]


def argument_cycles(workload: Workload, arch: CpuArch) -> float:
    """Return the predicted cycles to stream all arguments once (memory-bound roofline)."""
    size = workload.argument_bytes
    cores = arch.cores if size > _ONE_CORE_BYTES else 1
    return stream_cycles(size, cores, arch)


def untiled_cycles(workload: Workload, arch: CpuArch) -> float:
    """Return the predicted cycles of the reductions' multiply-adds without a register tile."""
    steps = sum(one.work for one in workload.reductions)
    peak = arch.cores * arch.fma_ports * arch.lanes("float32")
    return _UNTILED_SLOWDOWN * steps / peak
