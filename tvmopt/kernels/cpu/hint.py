"""CpuHint: one configuration of a CPU kernel family."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from tvmopt.device.arch import Arch
from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.hint import Hint

# Longest vectorised loop, in vector registers. LLVM splits it into registers; longer loops spill.
MAX_VECTOR_REGISTERS = 4
# Value of ``CpuHint.stage`` that inlines the producers (compute_inline).
INLINED = -1
# Minimum parallel tasks per core: TVM's thread pool gives each thread one contiguous range of
# tasks, so a remainder of one task must be small relative to a range.
TASKS_PER_CORE = 8


@dataclasses.dataclass(frozen=True)
class CpuHint(Hint):
    """Configuration of a CPU kernel. A field that the template does not use keeps its default.

    Attributes:
        template: Name of the kernel family.
        arch: The CPU that the parameters were chosen for.
        block: Register tile: elements of each data-parallel axis of the anchor, the axes as the
            template normalises them.
        task: Cache block for L2: elements of each of these axes that are computed together; 0 for
            the full extent of an axis, empty without cache blocking.
        rstep: K block: elements of the innermost reduction axis per block; 0 is the full extent.
        accumulate: Number of innermost tile loops inside the K-block loop. Their partial sums stay
            in memory, and the weight's K block stays in L1.
        order: Order of the tile loops, outermost first. Indices below ``len(block)`` are the tile
            loops of the axes; the cache-block loops of ``task`` follow, in the order of the axes.
        parallel: Number of outermost loops that run in parallel; 0 is none.
        stage: compute_at depth of the producers (padding): number of loops around them; 0: a loop
            nest of their own at the root; ``INLINED``: compute_inline.
        pack: Layout of the vectorised operand: ``"none"`` reads it in place, ``"call"`` packs it at
            every call, ``"constant"`` prepacks it when the model is built.
        intrin: Name of the tensor intrinsic for the contraction; empty for vector multiply-adds.
        prefetch: Prefetch distance of the weight in the reduction loop, in bytes; 0 is none. Only
            x86 uses it.
        tasks: Parallel tasks per core for the stages around the anchor; 0 keeps them serial.
        vectors: Longest vector in these stages, in registers.
    """

    arch_type: ClassVar[type[Arch]] = CpuArch

    arch: CpuArch
    block: tuple[int, ...] = ()
    task: tuple[int, ...] = ()
    rstep: int = 0
    accumulate: int = 0
    order: tuple[int, ...] = ()
    parallel: int = 0
    stage: int = 0
    pack: str = "none"
    intrin: str = ""
    prefetch: int = 0
    tasks: int = TASKS_PER_CORE
    vectors: int = MAX_VECTOR_REGISTERS

    @property
    def group(self) -> tuple[object, ...]:
        """Grouping key: vector width, loop order and K blocking."""
        width = self.block[-1:], self.task[-1:]
        inlined = self.stage == INLINED
        return self.template, *width, self.order, self.rstep > 0, self.accumulate, inlined

    @property
    def features(self) -> list[float]:
        """Feature vector of the configuration for the learned ranker."""
        order = list(self.order)
        last = len(order) - 1
        column = order.index(last) / max(1, last) if last in order else 0.0
        return [
            float(self.parallel),
            float(self.stage),
            float(self.rstep),
            column,
            float(self.tasks),
            float(self.vectors),
            float(len(self.template)),
            float(self.block[-1] if self.block else 0),
            float(math.prod(self.block[:-1])),
            float(self.pack == "call"),
            float(self.accumulate),
            math.log2(1 + sum(self.task)),
        ]
