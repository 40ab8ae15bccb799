"""CpuHint: what the configurations of all CPU kernel families share."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import ClassVar

from tvmopt.device.arch import Arch
from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.hint import Hint

# Longest vectorised loop, in vector registers. LLVM splits it into registers; longer loops spill.
MAX_VECTOR_REGISTERS = 4
# Minimum parallel tasks per core: TVM's thread pool gives each thread one contiguous range of
# tasks, so a remainder of one task must be small relative to a range.
TASKS_PER_CORE = 8


@dataclasses.dataclass(frozen=True)
class CpuHint(Hint):
    """Configuration of a CPU kernel; each family has its own subclass.

    Attributes:
        template: Name of the kernel family.
        arch: The CPU that the parameters were chosen for.
    """

    arch_type: ClassVar[type[Arch]] = CpuArch

    arch: CpuArch

    @property
    def tasks_per_core(self) -> int:
        """Parallel tasks per core in a loop nest without register tile; 0 keeps it serial."""
        return TASKS_PER_CORE

    @property
    def vector_registers(self) -> int:
        """Longest vector in a loop nest without register tile, in registers."""
        return MAX_VECTOR_REGISTERS

    @property
    def features(self) -> list[float]:
        """Feature vector for the learned re-ranker: one position per field of any family."""
        field = functools.partial(getattr, self)
        tile, order = field("register_tile", ()), field("loop_order", ())
        last = len(order) - 1
        return [
            float(field("parallel_loops", 0)),
            float(field("producer_depth", 0)),
            float(field("k_block", 0)),
            order.index(last) / max(1, last) if last in order else 0.0,
            float(self.tasks_per_core),
            float(self.vector_registers),
            float(len(self.template)),
            float(tile[-1] if tile else 0),
            float(math.prod(tile[:-1])),
            float(field("packing", "none") == "runtime"),
            float(field("loops_in_k_block", 0)),
            math.log2(1 + sum(field("l2_block", ()))),
        ]
