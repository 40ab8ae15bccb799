"""GEMM of a layer's input and its weight, computed while the recurrent weight is read.

A step reads the whole recurrent weight, and uses each value once, so that it waits for memory.
Meanwhile it multiplies a part of the input's weight by the inputs of the next block of steps::

    step        0 1 2 3 4 5 | 6 7 8 9 10 11 | ...
    multiplies  6 ...... 11 | 12 ....... 17 |        # a sixth of the features at each step

The accumulators of two blocks are kept: the steps read one block while the other grows. A thread
reads only its own results. For batch 1 without ``lengths``: then a step knows which inputs follow.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cpu.recurrence.tiling import input_groups
from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.cell import RowBlock
from tvmopt.kernels.recurrence.operands import Parameter


def input_parameters(
    recurrence: Recurrence, units: int, lanes: int, features: int
) -> list[Parameter]:
    """Return the parameters that take the place of ``gates``.

    Args:
        recurrence: The layer.
        units: Hidden units, rounded up to whole tiles.
        lanes: Units of a tile.
        features: Features of the input.
    """
    r = recurrence
    return [
        ("x", (r.steps, features), "float32"),
        *(
            (
                f"input_weight{n}",
                (r.directions, units // lanes, features, len(gates), lanes),
                "float32",
            )
            for n, (_, gates) in enumerate(input_groups(r))
        ),
        ("input_bias", (r.directions, r.gates, units), "float32"),
    ]


class BlockGemm:
    """GEMM of one block of steps, for one tile and one group of gates.

    Args:
        recurrence: The layer.
        buffers: Buffers of the kernel, by name; ``products`` has shape (directions, tiles, 2,
            steps of a block, gates, lanes).
        group: Number of the group in :func:`input_groups`.
        place: The tile; its step reads the block before.
        block: Number of the block.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        buffers: dict[str, tirx.Buffer],
        group: int,
        place: RowBlock,
        block: Expr,
    ) -> None:
        self._r, self._of, self._place = recurrence, buffers, place
        self._weight = buffers[f"input_weight{group}"]
        _, self._gates = input_groups(recurrence)[group]
        self._block = block
        _, _, _, self.steps, _, self._lanes = map(int, buffers["products"].shape)
        shape = (self.steps, self.gates, self._lanes)
        self._accumulators = build.alloc_buffer(shape, "float32", scope="local")

    @property
    def registers(self) -> int:
        """Vector registers for the accumulators."""
        return self.steps * self.gates

    @property
    def gates(self) -> int:
        """Gates of the group."""
        return len(self._gates)

    @property
    def features(self) -> int:
        """Features of the input."""
        return int(self._of["x"].shape[1])

    def load(self, begins: Expr) -> None:
        """Emit the load of the accumulators; of the bias, where they begin."""
        bias = self._of["input_bias"]

        def first(step: int, gate: int, unit: Expr) -> Expr:
            own = bias[
                self._place.direction, self._gates[gate], self._place.tile * self._lanes + unit
            ]
            return tirx.Select(begins, own, self._of["products"][self._kept(step, gate, unit)])

        self._every(first)

    def add(self, k: Expr) -> None:
        """Emit the multiply-adds of one feature."""

        def added(step: int, gate: int, unit: Expr) -> Expr:
            x = self._of["x"][self._time(step), k]
            own = self._weight[self._place.direction, self._place.tile, k, gate, unit]
            return self._accumulators[step, gate, unit] + x * own

        self._every(added)

    def store(self) -> None:
        """Emit the store of the accumulators."""
        for gate in range(self.gates):
            for step in range(self.steps):
                with build.vectorized(self._lanes) as unit:
                    build.buffer_store(
                        self._of["products"],
                        self._accumulators[step, gate, unit],
                        list(self._kept(step, gate, unit)),
                    )

    def _every(self, value: Callable[[int, int, Expr], Expr]) -> None:
        # Gates inside: a weight for each gate and one input stay in registers.
        for step in range(self.steps):
            for gate in range(self.gates):
                with build.vectorized(self._lanes) as unit:
                    build.buffer_store(
                        self._accumulators, value(step, gate, unit), [step, gate, unit]
                    )

    def _kept(self, step: int, gate: int, unit: Expr) -> tuple[Expr | int, ...]:
        place = self._place
        return (place.direction, place.tile, self._block % 2, step, self._gates[gate], unit)

    def _time(self, step: int) -> Expr:
        """Return the input's place of a step of the block; the last one's, past the end."""
        last = self._r.steps - 1
        at = tirx.min(self._block * self.steps + step, last)
        if not any(self._r.reverse):
            return at
        if all(self._r.reverse):
            return last - at
        return tirx.Select(self._place.direction == 1, last - at, at)
