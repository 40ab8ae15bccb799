"""Tiling and layout of the kernel of a recurrent layer on a CPU."""

from __future__ import annotations

import dataclasses

from tvmopt.kernels.cpu.intrinsics import DotIntrinsic
from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.operands import Shape

#: 4-byte values of a cache line.
LINE = 16
# Most steps of a block. A block reads the input's weight once; with more steps the accumulators are
# loaded and stored too often.
_MOST_STEPS = 10


@dataclasses.dataclass(frozen=True)
class RecurrenceTiling:
    """Layout of a kernel for a device.

    Attributes:
        lanes: Units of a tile: float32 values of one vector register.
        registers: Vector registers.
        threads: Threads that share a step.
        spins: Whether they wait for each other by flags in memory, as an x86 CPU allows; TVM's own
            barrier calls the system at every step, which takes microseconds.
        dot: Instruction that multiplies an int8 weight.
    """

    lanes: int
    registers: int
    threads: int
    spins: bool = False
    dot: DotIntrinsic | None = None

    @property
    def accumulators(self) -> int:
        """Vector registers for the accumulators of a GEMV without an input GEMM."""
        return self.registers // 2


def padded_units(recurrence: Recurrence, tiling: RecurrenceTiling) -> int:
    """Return the hidden units rounded up to whole tiles."""
    return -(-recurrence.hidden // tiling.lanes) * tiling.lanes


def weight_shapes(recurrence: Recurrence, tiling: RecurrenceTiling) -> list[Shape]:
    """Return the shape of the packed recurrent weight of each phase."""
    r, tiles = recurrence, padded_units(recurrence, tiling) // tiling.lanes
    if tiling.dot is None:
        return [(r.directions, tiles, r.hidden, len(gates), tiling.lanes) for gates in r.phases]
    depth = tiling.dot.depth
    words = -(-r.hidden // depth)
    return [(r.directions, tiles, words, len(gates), tiling.lanes, depth) for gates in r.phases]


def input_groups(recurrence: Recurrence) -> list[tuple[int, tuple[int, ...]]]:
    """Return the phase and the gates of each group that accumulates its input GEMM together.

    The four gates of an LSTM make two groups, so that registers hold more steps.
    """
    return [
        (phase, gates[first : first + size])
        for phase, gates in enumerate(recurrence.phases)
        for size in [len(gates) if len(gates) < 4 else 2]
        for first in range(0, len(gates), size)
    ]


def block_steps(recurrence: Recurrence, tiling: RecurrenceTiling) -> int:
    """Return the steps whose input accumulators fit in registers beside one step's state.

    0 where a matmul over all steps, before the recurrence, is better: too few steps, more
    than one sequence, or sequences of different lengths. Also where a vector is shorter than a
    cache line: with AVX2 it was measured up to 23 % slower. A step with an int8 weight hardly
    waits for it.
    """
    r = recurrence
    if tiling.lanes < LINE or tiling.dot is not None:
        return 0
    steps = _MOST_STEPS
    for phase, gates in input_groups(r):
        operands = len(r.phases[phase]) + len(gates) + 1
        steps = min(steps, (tiling.registers - operands) // len(gates))
    if r.batch > 1 or "lengths" in r.operands or r.steps < 2 * steps:
        return 0
    return steps
