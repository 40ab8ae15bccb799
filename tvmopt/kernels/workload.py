"""Workload: a fused TensorIR function, and what families ask of it, each analysis done once."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, TypeVar

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError

from tvmopt.kernels.analysis import (
    BlockFacts,
    all_facts,
    block_facts,
    leaf_blocks,
    why_not_schedulable,
)

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A family does not take a workload.

    Attributes:
        reason: Why, in one line.
    """

    reason: str


class Workload:
    """A TensorIR function, as FuseTIR leaves it.

    Args:
        func: The function. It is not changed.
    """

    def __init__(self, func: tirx.PrimFunc) -> None:
        self.func = func
        self._results: dict[Callable[[tirx.PrimFunc], Any], Any] = {}

    def analysed(self, analysis: Callable[[tirx.PrimFunc], _T]) -> _T | None:
        """Return what ``analysis`` gives for the function; None where TVM refuses a step of it."""
        if analysis not in self._results:
            try:
                self._results[analysis] = analysis(self.func)
            except (ScheduleError, InternalError):
                self._results[analysis] = None
        found: _T | None = self._results[analysis]
        return found

    @functools.cached_property
    def refusal(self) -> Refusal | None:
        """Why no schedule can take the function; None where one can."""
        reason = why_not_schedulable(self.func)
        return None if reason is None else Refusal(reason)

    @functools.cached_property
    def refusal_of_kernel(self) -> Refusal | None:
        """The same for a GPU kernel, which may also compute scalars."""
        reason = why_not_schedulable(self.func, scalars=True)
        return None if reason is None else Refusal(reason)

    @functools.cached_property
    def reduces(self) -> bool:
        """Whether a block of the function is a reduction."""
        sch = s_tir.Schedule(IRModule({"main": self.func}))
        return any(block_facts(sch, block).reduction for block in leaf_blocks(sch))

    @functools.cached_property
    def argument_bytes(self) -> int:
        """Bytes of all arguments of static shape."""
        return sum(
            math.prod(int(e) for e in p.shape) * p.dtype.itemsize
            for p in self.func.params
            if all(isinstance(e, tirx.IntImm) for e in p.shape)
        )


@dataclasses.dataclass(frozen=True)
class Inlined:
    """A function with everything inlined that can be.

    Attributes:
        sch: The schedule.
        blocks: Facts of its blocks, in program order.
    """

    sch: s_tir.Schedule
    blocks: tuple[BlockFacts, ...]

    @classmethod
    def of(cls, sch: s_tir.Schedule) -> Inlined:
        """The facts of ``sch``."""
        return cls(sch, tuple(all_facts(sch)))
