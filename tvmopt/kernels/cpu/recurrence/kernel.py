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

The kernel takes the input's GEMM from a matmul over all steps, or computes them itself
while it waits for the weight (:mod:`~tvmopt.kernels.cpu.recurrence.input_gemm`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cpu.recurrence.fetch import fetch_inputs, fetch_state, fetches
from tvmopt.kernels.cpu.recurrence.input_gemm import BlockGemm, input_parameters
from tvmopt.kernels.cpu.recurrence.integer_gemv import (
    IntegerGemv,
    IntegerState,
    zero_point,
)
from tvmopt.kernels.cpu.recurrence.state_gemv import StateGemv
from tvmopt.kernels.cpu.recurrence.threads import StepThreads
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
    if tiling.dot is not None and zero_point(tiling.dot):
        found.append(("weight_offset", (r.directions, r.gates, units), "int32"))
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
        self._state8: IntegerState | None = None

    def emit(self) -> None:
        r, lanes = self._r, self._tiling.lanes
        state = state_shape(r, self._units)
        self._of["h"] = build.alloc_buffer((2, *state), "float32", scope="global")
        if len(r.phases) > 1:
            for name in ("update", "reset_h"):
                self._of[name] = build.alloc_buffer(state, "float32", scope="global")
        threads = StepThreads(self._tiling)
        self._initial("h", "initial_h", (0,))
        if self._tiling.dot is not None:
            self._state8 = IntegerState(r, self._tiling.dot, self._units, self._of)
            self._state8.begin()
        if r.cell == "LSTM":
            self._initial("y_c", "initial_c", ())
        steps = self._steps()
        if self._block_steps:
            shape = (r.directions, self._tiles, 2, self._block_steps, r.gates, lanes)
            self._of["products"] = build.alloc_buffer(shape, "float32", scope="global")
        with threads.launch(), fetches() if threads.spins else contextlib.nullcontext():
            before = 0
            if self._block_steps:
                before = 1
                with threads.each(tirx.IntImm("int32", before)) as thread:
                    self._tasks(tirx.IntImm("int32", 0), thread, self._first_block)
            with build.serial(steps) as step:
                for phase in range(len(r.phases)):
                    with threads.each(before + step * len(r.phases) + phase + 1) as thread:
                        if threads.spins:
                            self._fetch(phase, step)
                        self._tasks(step, thread, partial(self._task, phase, step))
        with self._each(state) as at:
            build.buffer_store(self._of["y_h"], self._of["h"][(steps % 2, *at)], list(at))
        if "lengths" in self._of:
            with build.serial(r.steps - steps) as more, self._each(state) as at:
                build.buffer_store(self._of["y"], tirx.const(0, "float32"), [steps + more, *at])

    def _steps(self) -> Expr | int:
        """Return the number of steps to compute: the length of the longest sequence."""
        r, lengths = self._r, self._of.get("lengths")
        if lengths is None:
            return r.steps
        longest = build.alloc_buffer((1,), "int32", scope="global")
        build.buffer_store(longest, tirx.const(0, "int32"), [0])
        with build.serial(r.batch) as row:
            length = tirx.min(lengths[row], r.steps)
            build.buffer_store(longest, tirx.max(longest[0], length), [0])
        return longest[0]

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

    def _fetch(self, phase: int, step: Expr) -> None:
        """Emit the prefetch of the state, and of the inputs that the next step multiplies."""
        bits = "" if self._state8 is None else "8"
        if phase:
            fetch_state(self._r, self._of["reset_h" + bits], [])
            return
        fetch_state(self._r, self._of["h" + bits], [step % 2])
        if self._block_steps:
            fetch_inputs(self._r, self._of["x"], self._block_steps, step + 1)

    def _tasks(self, step: Expr, thread: Expr, task: Callable[[Expr, Expr], None]) -> None:
        """Emit the tiles of one thread: ``task`` of a direction and a tile."""
        tasks = self._r.directions * self._tiles
        each = -(-tasks // self._tiling.threads)
        with build.serial(each) as turn:
            place = tirx.Select(step % 2 == 1, each - 1 - turn, turn)
            number = thread * each + place
            if tasks == each * self._tiling.threads:
                task(number // self._tiles, number % self._tiles)
                return
            with build.If(number < tasks), build.Then():
                task(number // self._tiles, number % self._tiles)

    def _first_block(self, direction: Expr, tile: Expr) -> None:
        """Emit the input's GEMM of the first block of steps, for one tile."""
        zero = tirx.IntImm("int32", 0)
        place = RowBlock(zero, direction, tile, zero, 1)
        for group in range(len(input_groups(self._r))):
            gemm = BlockGemm(self._r, self._of, group, place, zero)
            gemm.load(tirx.IntImm("bool", 1))
            with build.serial(int(self._of["x"].shape[1])) as k:
                gemm.add(k)
            gemm.store()

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
        gemv = StateGemv if self._state8 is None else IntegerGemv
        state = gemv(self._r, self._tiling, self._of, phase, place)
        if isinstance(state, StateGemv) and self._block_steps:
            self._beside_inputs(phase, place, state)
        else:
            state.emit()
        products = self._products_of(place) if self._block_steps else None
        for row in range(place.rows):
            lanes = self._tiling.lanes
            CellRow(self._r, lanes, self._of, place, row, state.buffer, products).emit(phase)
            if self._state8 is not None:
                self._state8.keep(phase, place, row, lanes)

    def _beside_inputs(self, phase: int, place: RowBlock, state: StateGemv) -> None:
        """Emit the GEMV of the state, and the GEMM of the next block of inputs, if any."""
        block, step = place.step // self._block_steps, place.step % self._block_steps
        with build.If((block + 1) * self._block_steps < self._r.steps):
            with build.Then():
                following = [
                    BlockGemm(self._r, self._of, group, place, block + 1)
                    for group, (own, _) in enumerate(input_groups(self._r))
                    if own == phase
                ]
                state.emit_beside(following, step)
            with build.Else():
                state.emit()

    def _products_of(self, place: RowBlock) -> Callable[[int, Expr], Expr]:
        """Return the GEMM of a step's input, by gate and unit of the tile."""
        block, step = place.step // self._block_steps, place.step % self._block_steps
        at = (place.direction, place.tile, block % 2, step)
        return lambda gate, unit: self._of["products"][(*at, gate, unit)]
