"""CpuHint: one configuration of a CPU kernel family."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.hint import Hint

# Longest vectorised loop, in registers. LLVM cuts it into registers; longer ones only spill.
MAX_VECTOR_REGISTERS = 4
# A hint's ``stage`` for producers that are computed where they are read.
INLINED = -1
# Parallel tasks a core, at least: the pool hands every thread one contiguous share of the tasks,
# so a remainder of one task must be small next to a share.
TASKS_PER_CORE = 8


@dataclasses.dataclass(frozen=True)
class CpuHint(Hint):
    """What a template is told. A field that a template has no use for keeps its default.

    Attributes:
        template: Name of the template.
        arch: The CPU that the numbers were chosen for.
        block: Elements of each data-parallel axis of the anchor in one register tile, the axes as
            the template normalises them.
        task: Elements of each of these axes that are computed together, so that what they share
            stays in L2; 0 for all of them, empty where no axis is divided so.
        rstep: Elements of the innermost reduction axis summed up before the next tile; 0 is all.
        accumulate: How many of the innermost loops over the tiles run within each such step, their
            unfinished sums in memory; then what a step reads of the weight stays in L1.
        order: Loops over the tiles, outermost first, as indices into ``block``; after these, in the
            order of the axes, come the loops over the parts that ``task`` divides an axis into.
        parallel: How many of these loops are shared out over the cores; 0 is none.
        stage: How many of these loops surround the producers (padding); 0: a stage of their own;
            ``INLINED``: none, each element is computed where it is read.
        pack: How the vectorised operand is laid out: ``"none"`` reads it in place, ``"call"``
            copies it at every call, ``"constant"`` once, when the model is built.
        intrin: Name of the tensor intrinsic that multiplies; empty for plain vectors.
        prefetch: Bytes that a step of the reduction fetches ahead of what it reads of the weight; 0
            is none. Left out where the CPU is not x86.
        tasks: Parallel tasks a core of the stages around the anchor; 0 keeps them serial.
        vectors: Longest vector of these stages, in registers.
    """

    arch_type: ClassVar[type] = CpuArch

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
        """Vector width, loop order and K blocking."""
        width = self.block[-1:], self.task[-1:]
        inlined = self.stage == INLINED
        return self.template, *width, self.order, self.rstep > 0, self.accumulate, inlined

    @property
    def features(self) -> list[float]:
        """The configuration in numbers, for the learned ranker."""
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
