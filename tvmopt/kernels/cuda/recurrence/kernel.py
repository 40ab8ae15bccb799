"""One TensorIR function for a whole recurrent layer on a GPU.

::

    launch: state = initial state
    for step:                                   # on the host; a launch for each phase
        launch, one warp for a hidden unit and some rows of the batch:
            acc[row, gate] = sum_k h[row, k] * weight[unit, gate, k]      # lanes share k
            shuffle the lanes' accumulators together; each lane keeps one (row, gate)
            a lane for each row: gates, cell state and h of the unit
    launch: Y_h = state

The end of a launch is the barrier between two steps, and between the two phases of a GRU that
resets first. The state is double-buffered. A lane reads four neighbouring values at once where the
hidden size allows it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.cell import CellRow, RowBlock
from tvmopt.kernels.recurrence.function import kernel_function
from tvmopt.kernels.recurrence.operands import (
    Parameter,
    Shape,
    kernel_inputs,
    kernel_outputs,
    state_shape,
)

_LANES, _WARPS = 32, 4
# Threads of a block that copies states.
_COPIERS = 256


def weight_shapes(recurrence: Recurrence) -> list[Shape]:
    """Return the shape of the weight of each phase: (directions, units, gates, hidden)."""
    r = recurrence
    return [(r.directions, r.hidden, len(gates), r.hidden) for gates in r.phases]


def scratch(recurrence: Recurrence) -> list[Parameter]:
    """Return the buffers that the kernel needs besides inputs and outputs; outputs as well."""
    state = state_shape(recurrence, recurrence.hidden)
    names = ["update", "reset_h"] if len(recurrence.phases) > 1 else []
    return [("h", (2, *state), "float32"), *((name, state, "float32") for name in names)]


def recurrence_kernel(recurrence: Recurrence) -> tirx.PrimFunc:
    """Return the function of a recurrent layer.

    Its parameters are the inputs, the outputs, and :func:`scratch`.
    """
    parameters = [
        *kernel_inputs(recurrence, recurrence.hidden, weight_shapes(recurrence)),
        *kernel_outputs(recurrence, recurrence.hidden),
        *scratch(recurrence),
    ]
    return kernel_function(parameters, lambda of: _Launches(recurrence, of).emit())


class _Launches:
    def __init__(self, recurrence: Recurrence, buffers: dict[str, tirx.Buffer]) -> None:
        self._r, self._of = recurrence, buffers
        # Values of k that a lane reads at once.
        self._width = next(width for width in (4, 2, 1) if recurrence.hidden % width == 0)

    def emit(self) -> None:
        r = self._r
        state = state_shape(r, r.hidden)
        with self._each(state) as at:
            self._copy("initial_h", at, "h", (0, *at))
            if r.cell == "LSTM":
                self._copy("initial_c", at, "y_c", at)
        with build.serial(r.steps) as step:
            for phase in range(len(r.phases)):
                self._phase(phase, step)
        with self._each(state) as at:
            self._copy("h", (r.steps % 2, *at), "y_h", at)

    @contextlib.contextmanager
    def _each(self, shape: Shape) -> Iterator[tuple[Expr, ...]]:
        """A launch with one thread for each element of ``shape``."""
        size = math.prod(shape)
        with (
            build.thread_binding(0, -(-size // _COPIERS), thread="blockIdx.x") as block,
            build.thread_binding(0, _COPIERS, thread="threadIdx.x") as thread,
            build.If(block * _COPIERS + thread < size),
            build.Then(),
        ):
            yield _unravelled(block * _COPIERS + thread, shape)

    def _copy(
        self, source: str, at: tuple[Expr | int, ...], to: str, place: tuple[Expr | int, ...]
    ) -> None:
        """Copy one value; zero where there is no buffer ``source``."""
        value = self._of[source][at] if source in self._of else tirx.const(0, "float32")
        build.buffer_store(self._of[to], value, list(place))

    def _phase(self, phase: int, step: Expr) -> None:
        r = self._r
        # A sum for each lane at most.
        rows = max(1, min(r.batch, _LANES // len(r.phases[phase])))
        tiles = -(-r.hidden // _WARPS)
        with (
            build.thread_binding(0, r.directions * tiles, thread="blockIdx.x") as tile,
            build.thread_binding(0, -(-r.batch // rows), thread="blockIdx.y") as block,
            build.thread_binding(0, _WARPS, thread="threadIdx.y") as warp,
            build.thread_binding(0, _LANES, thread="threadIdx.x") as lane,
        ):
            unit = tile % tiles * _WARPS + warp
            place = RowBlock(step, tile // tiles, unit, block * rows, rows)
            # The same for all lanes of a warp, so that they shuffle together.
            with build.If(unit < r.hidden), build.Then():
                accumulators = self._products(phase, place, lane)
                _reduce_scatter(accumulators, lane)
                gates = self._gates_of_row(phase, accumulators, lane)
                inside = tirx.And(lane < rows, place.first_row + lane < r.batch)
                with build.If(inside), build.Then():
                    row = dataclasses.replace(place, first_row=place.first_row + lane, rows=1)
                    CellRow(r, 1, self._of, row, 0, gates).emit(phase)

    def _products(self, phase: int, place: RowBlock, lane: Expr) -> tirx.Buffer:
        """Emit the GEMV of the state and the weight; return the lane's partial sums.

        They lie in the order (row, gate).
        Their number is rounded up to a power of two.
        """
        r, width = self._r, self._width
        gates = len(r.phases[phase])
        count = 1 << (place.rows * gates - 1).bit_length()
        accumulators = build.alloc_buffer((count,), "float32", scope="local")
        weights = build.alloc_buffer((gates, width), r.weight_dtype, scope="local")
        state = build.alloc_buffer((width,), "float32", scope="local")
        for n in range(count):
            build.buffer_store(accumulators, tirx.const(0, "float32"), [n])
        each = _LANES * width
        with build.serial(-(-r.hidden // each)) as block:
            first = block * each + lane * width
            with build.If(first < r.hidden), build.Then():
                weight = self._of[f"weight{phase}"]
                for gate in range(gates):
                    with build.vectorized(width) as n:
                        value = weight[place.direction, place.tile, gate, first + n]
                        build.buffer_store(weights, value, [gate, n])
                for row in range(place.rows):
                    with build.vectorized(width) as n:
                        value = self._state(phase, place, row, first + n)
                        build.buffer_store(state, value, [n])
                    for gate in range(gates):
                        at = row * gates + gate
                        for n in range(width):
                            product = state[n] * weights[gate, n].astype("float32")
                            build.buffer_store(accumulators, accumulators[at] + product, [at])
        return accumulators

    def _gates_of_row(self, phase: int, accumulators: tirx.Buffer, lane: Expr) -> tirx.Buffer:
        """Return the gates of the lane's row, (1, 1, gate, 1), from the lanes that hold them."""
        gates = len(self._r.phases[phase])
        found = build.alloc_buffer((1, 1, gates, 1), "float32", scope="local")
        for gate in range(gates):
            holder = tirx.min(lane * gates + gate, tirx.const(_LANES - 1, "int32"))
            value = build.tvm_warp_shuffle(
                build.tvm_warp_activemask(), accumulators[0], holder, _LANES, _LANES
            )
            build.buffer_store(found, value, [0, 0, gate, 0])
        return found

    def _state(self, phase: int, place: RowBlock, row: int, k: Expr) -> Expr:
        """Return a value of the state; rows past the batch read the last one."""
        inside = tirx.min(place.first_row + row, tirx.const(self._r.batch - 1, "int32"))
        at = (place.direction, inside, k)
        return self._of["reset_h"][at] if phase else self._of["h"][(place.step % 2, *at)]


def _reduce_scatter(accumulators: tirx.Buffer, lane: Expr) -> None:
    """Add up the accumulators over all lanes; lane ``n`` keeps total ``n`` as its first.

    Lanes exchange halves, so that 32 accumulators take 31 shuffles.
    """
    count, distance = int(accumulators.shape[0]), _LANES // 2
    while distance:
        if distance >= count:
            for n in range(count):
                build.buffer_store(
                    accumulators,
                    accumulators[n] + _from_other(accumulators[n], lane, distance),
                    [n],
                )
        else:
            upper = tirx.bitwise_and(lane, distance) != 0
            for n in range(distance):
                low, high = accumulators[n], accumulators[n + distance]
                given = _from_other(tirx.Select(upper, low, high), lane, distance)
                build.buffer_store(accumulators, tirx.Select(upper, high, low) + given, [n])
        distance //= 2


def _from_other(value: Expr, lane: Expr, distance: int) -> Expr:
    """Return the value of the lane whose number differs in the bit ``distance``."""
    other = tirx.bitwise_xor(lane, distance)
    return build.tvm_warp_shuffle(build.tvm_warp_activemask(), value, other, _LANES, _LANES)


def _unravelled(place: Expr, shape: Shape) -> tuple[Expr, ...]:
    """Return the index of the element at ``place`` in row-major order."""
    found = []
    for extent in reversed(shape[1:]):
        found.append(place % extent)
        place = place // extent
    return (place, *reversed(found))
