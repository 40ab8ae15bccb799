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
import dataclasses
from collections.abc import Callable, Iterator

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.cell import CellRow, RowBlock
from tvmopt.kernels.recurrence.function import kernel_function
from tvmopt.kernels.recurrence.operands import Shape, kernel_inputs, kernel_outputs, state_shape

# Most rows of the batch in one block.
_MOST_ROWS = 4
# Most values of k that are summed apart; independent sums hide the latency of FMA.
_MOST_SUMS = 8
# int32 values of a cache line: flags of two threads lie in different ones.
_LINE = 16
# Spins, of some 50 ns, after which a thread gives way at each further one.
_MOST_SPINS = 400


@dataclasses.dataclass(frozen=True)
class RecurrenceTiling:
    """How a kernel is laid out for a device.

    Attributes:
        lanes: Units of a tile: float32 values of one vector register.
        accumulators: Vector registers for the sums.
        threads: Threads that share a step.
        spins: Whether they wait for each other by flags in memory, as an x86 CPU allows; TVM's own
            barrier calls the system at every step, which takes microseconds.
    """

    lanes: int
    accumulators: int
    threads: int
    spins: bool = False


def padded_units(recurrence: Recurrence, tiling: RecurrenceTiling) -> int:
    """Return the hidden units rounded up to whole tiles."""
    return -(-recurrence.hidden // tiling.lanes) * tiling.lanes


def weight_shapes(recurrence: Recurrence, tiling: RecurrenceTiling) -> list[Shape]:
    """Return the shape of the packed weight of each phase."""
    r, tiles = recurrence, padded_units(recurrence, tiling) // tiling.lanes
    return [(r.directions, tiles, r.hidden, len(gates), tiling.lanes) for gates in r.phases]


def recurrence_kernel(recurrence: Recurrence, tiling: RecurrenceTiling) -> tirx.PrimFunc:
    """Return the function of a recurrent layer; its parameters are inputs, then outputs."""
    units = padded_units(recurrence, tiling)
    parameters = kernel_inputs(recurrence, units, weight_shapes(recurrence, tiling))
    parameters += kernel_outputs(recurrence, units)
    return kernel_function(parameters, lambda of: _Kernel(recurrence, tiling, of).emit())


class _Kernel:
    def __init__(
        self, recurrence: Recurrence, tiling: RecurrenceTiling, buffers: dict[str, tirx.Buffer]
    ) -> None:
        self._r, self._tiling, self._of = recurrence, tiling, buffers
        self._units = padded_units(recurrence, tiling)
        self._tiles = self._units // tiling.lanes

    def emit(self) -> None:
        r = self._r
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
        with self._launch(), build.serial(r.steps) as step:
            for phase in range(len(r.phases)):
                with self._threads(step * len(r.phases) + phase + 1) as thread:
                    self._tasks(phase, step, thread)
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

    def _tasks(self, phase: int, step: Expr, thread: Expr) -> None:
        """Emit the tiles of one thread."""
        tasks = self._r.directions * self._tiles
        each = -(-tasks // self._tiling.threads)
        with build.serial(each) as turn:
            place = tirx.Select(step % 2 == 1, each - 1 - turn, turn)
            task = thread * each + place
            if tasks % each == 0:
                self._task(phase, step, task // self._tiles, task % self._tiles)
                return
            with build.If(task < tasks), build.Then():
                self._task(phase, step, task // self._tiles, task % self._tiles)

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
        sums = self._products(phase, place)
        for row in range(place.rows):
            CellRow(self._r, self._tiling.lanes, self._of, place, row, sums).emit(phase)

    def _products(self, phase: int, place: RowBlock) -> tirx.Buffer:
        """Emit the products of the state and the weight; return the sums (row, gate, unit)."""
        lanes, gates = self._tiling.lanes, len(self._r.phases[phase])
        used = place.rows * gates
        apart = 1
        while apart < _MOST_SUMS and 2 * apart * used <= self._tiling.accumulators:
            apart *= 2
        sums = build.alloc_buffer((apart, place.rows, gates, lanes), "float32", scope="local")

        def every(emit: Callable[[int, int, int, Expr], None]) -> None:
            for part in range(apart):
                for row in range(place.rows):
                    for gate in range(gates):
                        with build.vectorized(lanes) as unit:
                            emit(part, row, gate, unit)

        every(
            lambda part, row, gate, unit: build.buffer_store(
                sums, tirx.const(0, "float32"), [part, row, gate, unit]
            )
        )

        def add(k: Expr, part: int, row: int, gate: int, unit: Expr) -> None:
            at = [part, row, gate, unit]
            weight = self._of[f"weight{phase}"][place.direction, place.tile, k, gate, unit]
            product = self._state(phase, place, row, k) * weight.astype("float32")
            build.buffer_store(sums, sums[tuple(at)] + product, at)

        whole = self._r.hidden // apart
        if whole:
            with build.serial(whole) as block:
                every(lambda part, *at: add(block * apart + part, part, *at))
        for k in range(whole * apart, self._r.hidden):
            for row in range(place.rows):
                for gate in range(gates):
                    with build.vectorized(lanes) as unit:
                        add(tirx.IntImm("int32", k), 0, row, gate, unit)
        while apart > 1:
            apart //= 2
            every(
                lambda part, row, gate, unit, half=apart: build.buffer_store(  # type: ignore[misc]
                    sums,
                    sums[part, row, gate, unit] + sums[part + half, row, gate, unit],
                    [part, row, gate, unit],
                )
            )
        return sums

    def _state(self, phase: int, place: RowBlock, row: int, k: Expr) -> Expr:
        at = (place.direction, place.first_row + row, k)
        return self._of["reset_h"][at] if phase else self._of["h"][(place.step % 2, *at)]


def _x86(name: str) -> None:
    """Emit an instruction that orders memory; the compiler moves no load or store across it."""
    build.evaluate(tirx.call_llvm_intrin("void", f"llvm.x86.{name}"))
