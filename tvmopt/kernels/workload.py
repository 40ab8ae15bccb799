"""Workload: a fused TensorIR function with cached analyses that the kernel families share."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.kernels.analysis import (
    BlockFacts,
    all_facts,
    block_facts,
    leaf_blocks,
)
from tvmopt.kernels.schedulable import why_not_schedulable

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A family does not match a workload.

    Attributes:
        reason: The reason, in one line.
    """

    reason: str


class Workload:
    """A TensorIR function after FuseTIR, with cached analyses.

    Args:
        func: The function. It is not changed.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self._results: dict[Callable[[tirx.PrimFunc], Any], Any] = {}

    def analysed(self, analysis: Callable[[tirx.PrimFunc], _T]) -> _T | None:
        """Return the cached result of ``analysis``; None where a schedule primitive fails in it."""
        if analysis not in self._results:
            try:
                self._results[analysis] = analysis(self.func)
            except (ScheduleError, InternalError):
                self._results[analysis] = None
        found: _T | None = self._results[analysis]
        return found

    @functools.cached_property
    def refusal(self) -> Refusal | None:
        """Why the function cannot be scheduled on a CPU; None when it can."""
        reason = why_not_schedulable(self.func)
        return None if reason is None else Refusal(reason)

    @functools.cached_property
    def refusal_of_kernel(self) -> Refusal | None:
        """Why the function cannot be scheduled on a GPU, where scalars are allowed; or None."""
        reason = why_not_schedulable(self.func, scalars=True)
        return None if reason is None else Refusal(reason)

    @functools.cached_property
    def reductions(self) -> tuple[BlockFacts, ...]:
        """Facts of the blocks that are reductions."""
        sch = s_tir.Schedule(IRModule({"main": self.func}))
        facts = [block_facts(sch, block) for block in leaf_blocks(sch)]
        return tuple(one for one in facts if one.reduction)

    @functools.cached_property
    def argument_bytes(self) -> int:
        """Total bytes of all arguments with static shapes."""
        return static_bytes(self.func.params)


def static_bytes(buffers: Iterable[tirx.Buffer]) -> int:
    """Return the total bytes of the buffers with static shapes."""
    return sum(
        math.prod(int(e) for e in buffer.shape) * buffer.dtype.itemsize
        for buffer in buffers
        if all(isinstance(e, tirx.IntImm) for e in buffer.shape)
    )


@dataclasses.dataclass(frozen=True)
class Inlined:
    """A function after inlining of its injective blocks.

    Attributes:
        sch: The schedule.
        blocks: Facts of its remaining blocks, in program order.
    """

    sch: s_tir.Schedule
    blocks: tuple[BlockFacts, ...]

    @classmethod
    def of(cls, sch: s_tir.Schedule) -> Inlined:
        """Analyse the blocks of ``sch``."""
        return cls(sch, tuple(all_facts(sch)))
