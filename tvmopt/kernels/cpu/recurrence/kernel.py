"""One TensorIR function for a whole recurrent layer.

::

    for step:                                   # one launch of the threads, a barrier a step
        parallel for thread:
            for own tile of hidden units:       # of one direction; backwards at odd steps
                for block of rows of the batch:
                    acc[row, gate, unit] = sum_k h[row, k] * weight[tile, k, gate, unit]
                    gates, cell state and h of these units

A thread keeps its tiles, so that its cache keeps their weight; where the cache is too small for all
of it, going back and forth finds the last tiles of the step before. The weight is packed in the
order in which it is read: (direction, tile, k, gate, unit of the tile). Gates that need the results
of others (a GRU's hidden gate) form a second phase after a barrier. The state is double-buffered,
since all tiles read the whole state of the last step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cpu.recurrence.input_product import BlockProducts, input_parameters
from tvmopt.kernels.cpu.recurrence.state_product import StateProducts
from tvmopt.kernels.cpu.recurrence.tiling import (
    RecurrenceTiling,
    block_steps,
    input_groups,
    padded_units,
    weight_shapes,
)
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

# Most rows of the batch in one block.
_MOST_ROWS = 4
# int32 values of a cache line: flags of two threads lie in different ones.
_LINE = 16
# Spins, of some 50 ns, after which a thread gives way at each further one.
_MOST_SPINS = 400


def recurrence_kernel(
    recurrence: Recurrence, tiling: RecurrenceTiling, features: int = 0
) -> tirx.PrimFunc:
    """Return the function of a recurrent layer; its parameters are inputs, then outputs.

    Args:
        recurrence: The layer.
        tiling: Its layout.
        features: Features of the input, if the kernel multiplies the input as well.
    """
    parameters = parameters_in(recurrence, tiling, features)
    parameters += kernel_outputs(recurrence, padded_units(recurrence, tiling))
    return kernel_function(parameters, lambda of: _Kernel(recurrence, tiling, of).emit())


def parameters_in(
    recurrence: Recurrence, tiling: RecurrenceTiling, features: int = 0
) -> list[Parameter]:
    """Return the inputs of :func:`recurrence_kernel`."""
    r, units = recurrence, padded_units(recurrence, tiling)
    found = kernel_inputs(r, units, weight_shapes(r, tiling))
    if not features:
        return found
    return [*input_parameters(r, units, tiling.lanes, features), *found[1:]]


class _Kernel:
    def __init__(
        self, recurrence: Recurrence, tiling: RecurrenceTiling, buffers: dict[str, tirx.Buffer]
    ) -> None:
        self._r, self._tiling, self._of = recurrence, tiling, buffers
        self._units = padded_units(recurrence, tiling)
        self._tiles = self._units // tiling.lanes
        self._block_steps = block_steps(recurrence, tiling) if "x" in buffers else 0

    def emit(self) -> None:
        r, lanes = self._r, self._tiling.lanes
        state = state_shape(r, self._units)
        self._of["h"] = build.alloc_buffer((2, *state), "float32", scope="global")
        if len(r.phases) > 1:
            for name in ("update", "reset_h"):
                self._of[name] = build.alloc_buffer(state, "float32", scope="global")
        if self._spins:
            # One axis: TVM would drop the unused columns of two, and flags would share a line.
            self._of["flags"] = build.alloc_buffer(
                (self._tiling.threads * _LINE,), "int32", scope="global"
            )
            with build.serial(self._tiling.threads) as thread:
                build.buffer_store(self._of["flags"], tirx.const(0, "int32"), [thread * _LINE])
        self._initial("h", "initial_h", (0,))
        if r.cell == "LSTM":
            self._initial("y_c", "initial_c", ())
        phases = len(r.phases)
        with self._launch():
            turns = 0
            if self._block_steps:
                turns = 1
                shape = (r.directions, self._tiles, 2, self._block_steps, r.gates, lanes)
                self._of["products"] = build.alloc_buffer(shape, "float32", scope="global")
                with self._threads(tirx.IntImm("int32", turns)) as thread:
                    self._tasks(tirx.IntImm("int32", 0), thread, self._first_block)
            with build.serial(r.steps) as step:
                for phase in range(phases):
                    with self._threads(turns + step * phases + phase + 1) as thread:
                        self._tasks(step, thread, partial(self._task, phase, step))
        with self._each(state) as at:
            build.buffer_store(self._of["y_h"], self._of["h"][(r.steps % 2, *at)], list(at))

    def _initial(self, name: str, source: str, first: Shape) -> None:
        state = state_shape(self._r, self._units)
        given = self._of.get(source)
        with self._each(state) as at:
            value = tirx.const(0, "float32") if given is None else given[at]
            build.buffer_store(self._of[name], value, [*first, *at])

    @contextlib.contextmanager
    def _each(self, shape: Shape) -> Iterator[tuple[Expr, ...]]:
        lanes = self._tiling.lanes
        with (
            build.grid(*shape[:-1], shape[-1] // lanes) as (*outer, tile),
            build.vectorized(lanes) as unit,
        ):
            yield (*outer, tile * lanes + unit)

    @contextlib.contextmanager
    def _launch(self) -> Iterator[None]:
        """Start the threads once for all steps."""
        if self._tiling.threads == 1:
            yield
            return
        with build.attr(0, "pragma_parallel_launch_point", 1):
            yield

    @contextlib.contextmanager
    def _threads(self, turn: Expr) -> Iterator[Expr]:
        """A loop over the threads; all have ended when it ends.

        Args:
            turn: Number of the loop, from 1.
        """
        count = self._tiling.threads
        if count == 1:
            yield tirx.IntImm("int32", 0)
            return
        if self._spins:
            with build.parallel(count) as one:
                yield one
                _x86("sse2.lfence")
                build.buffer_store(self._of["flags"], turn, [one * _LINE])
            with build.serial(count) as other:
                self._wait(other, turn)
            _x86("sse2.lfence")
            return
        with build.attr(0, "pragma_parallel_barrier_when_finish", 1), build.parallel(count) as one:
            yield one

    @property
    def _spins(self) -> bool:
        return self._tiling.spins and self._tiling.threads > 1

    def _wait(self, other: Expr, turn: Expr) -> None:
        """Wait until a thread has ended its loop ``turn``; give way if that takes long."""
        spins = build.alloc_buffer((1,), "int32", scope="local")
        build.buffer_store(spins, tirx.const(0, "int32"), [0])
        with build.While(self._of["flags"][other * _LINE] < turn):
            _x86("sse2.pause")
            build.buffer_store(spins, spins[0] + 1, [0])
            with build.If(spins[0] > _MOST_SPINS), build.Then():
                build.evaluate(tirx.call_extern("int32", "sched_yield"))

    def _tasks(self, step: Expr, thread: Expr, task: Callable[[Expr, Expr], None]) -> None:
        """Emit the tiles of one thread: ``task`` of a direction and a tile."""
        tasks = self._r.directions * self._tiles
        each = -(-tasks // self._tiling.threads)
        with build.serial(each) as turn:
            place = tirx.Select(step % 2 == 1, each - 1 - turn, turn)
            number = thread * each + place
            if tasks % each == 0:
                task(number // self._tiles, number % self._tiles)
                return
            with build.If(number < tasks), build.Then():
                task(number // self._tiles, number % self._tiles)

    def _first_block(self, direction: Expr, tile: Expr) -> None:
        """Emit the input's products of the first block of steps, of one tile."""
        zero = tirx.IntImm("int32", 0)
        place = RowBlock(zero, direction, tile, zero, 1)
        for group in range(len(input_groups(self._r))):
            products = BlockProducts(self._r, self._of, group, place, zero)
            products.load(tirx.IntImm("bool", 1))
            with build.serial(int(self._of["x"].shape[1])) as k:
                products.add(k)
            products.store()

    def _task(self, phase: int, step: Expr, direction: Expr, tile: Expr) -> None:
        """Emit one tile of one direction, over all rows of the batch."""
        gates = len(self._r.phases[phase])
        most = max(1, min(_MOST_ROWS, self._tiling.accumulators // gates))
        blocks, rest = divmod(self._r.batch, most)
        if blocks:
            with build.serial(blocks) as block:
                self._block(phase, RowBlock(step, direction, tile, block * most, most))
        if rest:
            first = tirx.IntImm("int32", blocks * most)
            self._block(phase, RowBlock(step, direction, tile, first, rest))

    def _block(self, phase: int, place: RowBlock) -> None:
        sums = StateProducts(self._r, self._tiling, self._of, phase, place)
        products = None
        if self._block_steps:
            block, step = place.step // self._block_steps, place.step % self._block_steps
            with build.If((block + 1) * self._block_steps < self._r.steps):
                with build.Then():
                    following = [
                        BlockProducts(self._r, self._of, group, place, block + 1)
                        for group, (own, _) in enumerate(input_groups(self._r))
                        if own == phase
                    ]
                    sums.emit_beside(following, step)
                with build.Else():
                    sums.emit()
            products = lambda gate, unit: self._of["products"][
                place.direction, place.tile, block % 2, step, gate, unit
            ]
        else:
            sums.emit()
        for row in range(place.rows):
            CellRow(self._r, self._tiling.lanes, self._of, place, row, sums.buffer, products).emit(phase)


def _x86(name: str) -> None:
    """Emit an instruction that orders memory; the compiler moves no load or store across it."""
    build.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}"))
