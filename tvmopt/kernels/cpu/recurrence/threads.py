"""Threads that start once for all steps, and wait for each other after each phase of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cpu.recurrence.tiling import LINE, RecurrenceTiling

# Spins, of some 50 ns, after which a thread gives way at each further one.
_MOST_SPINS = 400


class StepThreads:
    """Emits the loops over threads.

    Args:
        tiling: Layout of the kernel.
    """

    def __init__(self, tiling: RecurrenceTiling) -> None:
        self._count = tiling.threads
        self.spins = tiling.spins and tiling.threads > 1
        if self.spins:
            # One axis: TVM would drop the unused columns of two, and flags would share a line.
            self._flags = build.alloc_buffer((self._count * LINE,), "int32", scope="global")
            with build.serial(self._count) as thread:
                build.buffer_store(self._flags, tirx.const(0, "int32"), [thread * LINE])

    @contextlib.contextmanager
    def launch(self) -> Iterator[None]:
        """Start the threads once for all loops inside."""
        if self._count == 1:
            yield
            return
        with build.attr(0, "pragma_parallel_launch_point", 1):
            yield

    @contextlib.contextmanager
    def each(self, turn: Expr) -> Iterator[Expr]:
        """A loop over the threads; all have ended when it ends.

        Args:
            turn: Number of the loop, from 1.
        """
        if self._count == 1:
            yield tirx.IntImm("int32", 0)
            return
        if self.spins:
            with build.parallel(self._count) as one:
                yield one
                _x86("sse2.lfence")
                build.buffer_store(self._flags, turn, [one * LINE])
            with build.serial(self._count) as other:
                self._wait(other, turn)
            _x86("sse2.lfence")
            return
        with (
            build.attr(0, "pragma_parallel_barrier_when_finish", 1),
            build.parallel(self._count) as one,
        ):
            yield one

    def _wait(self, other: Expr, turn: Expr) -> None:
        """Wait until a thread has ended its loop ``turn``; give way if that takes long."""
        spins = build.alloc_buffer((1,), "int32", scope="local")
        build.buffer_store(spins, tirx.const(0, "int32"), [0])
        with build.While(self._flags[other * LINE] < turn):
            _x86("sse2.pause")
            build.buffer_store(spins, spins[0] + 1, [0])
            with build.If(spins[0] > _MOST_SPINS), build.Then():
                build.evaluate(tirx.call_extern("int32", "sched_yield"))


def _x86(name: str) -> None:
    """Emit an instruction that orders memory; the compiler moves no load or store across it."""
    build.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}"))
