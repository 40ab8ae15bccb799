"""GEMV of the state and an int8 recurrent weight, by dot-product instructions.

::

    state8 = round(h / state scale) + zero point       # by the thread that computed h
    acc[row, gate, unit] = offset[gate, unit] + sum_k state8[row, k] * weight[tile, k, gate, unit]
    product = float32(acc) * (weight scale[gate, unit] * state scale)

The state of a :attr:`~tvmopt.kernels.recurrence.Recurrence.bounded` layer stays within 1, or within
its largest initial state, so that its scale is known before the first step. The offset subtracts
the zero point's share, which an instruction for uint8 data adds.
"""

from __future__ import annotations

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.device import dtypes
from tvmopt.kernels.cpu.intrinsics import DotIntrinsic
from tvmopt.kernels.cpu.recurrence.tiling import RecurrenceTiling
from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.cell import RowBlock
from tvmopt.kernels.recurrence.operands import state_shape

# Most partial accumulators of a gate; independent ones hide the latency of the instruction.
_MOST_PARTS = 4
_LARGEST = 127.0


def zero_point(dot: DotIntrinsic) -> int:
    """Return the integer that stands for a state of 0."""
    return 128 if dtypes.dtype(dot.data).lowest == 0 else 0


class IntegerState:
    """The state in 8 bits, beside the state in float32.

    Args:
        recurrence: The layer.
        dot: Its instruction.
        units: Hidden units, rounded up to whole tiles.
        buffers: Buffers of the kernel, by name; this class adds the state and its scale.
    """

    def __init__(
        self, recurrence: Recurrence, dot: DotIntrinsic, units: int, buffers: dict[str, tirx.Buffer]
    ) -> None:
        self._r, self._dot, self._units, self._of = recurrence, dot, units, buffers
        shape = state_shape(recurrence, units)
        buffers["h8"] = build.alloc_buffer((2, *shape), dot.data, scope="global")
        if len(recurrence.phases) > 1:
            buffers["reset_h8"] = build.alloc_buffer(shape, dot.data, scope="global")
        buffers["state_scale"] = build.alloc_buffer((1,), "float32", scope="global")

    def begin(self) -> None:
        """Emit the scale, and the initial state in 8 bits."""
        scale, initial = self._of["state_scale"], self._of.get("initial_h")
        build.buffer_store(scale, tirx.const(1, "float32"), [0])
        shape = state_shape(self._r, self._units)
        if initial is not None:
            with build.grid(*shape) as at:
                build.buffer_store(scale, tirx.max(scale[0], tirx.abs(initial[tuple(at)])), [0])
        build.buffer_store(scale, scale[0] / tirx.const(_LARGEST, "float32"), [0])
        with build.grid(*shape) as at:
            self._store("h8", [0, *at], self._of["h"][(0, *at)])

    def keep(self, phase: int, place: RowBlock, row: int, lanes: int) -> None:
        """Emit the conversion of what a row of a tile has just computed in a phase."""
        with build.vectorized(lanes) as unit:
            at = (place.direction, place.first_row + row, place.tile * lanes + unit)
            if phase == len(self._r.phases) - 1:
                following = (place.step + 1) % 2
                self._store("h8", [following, *at], self._of["h"][(following, *at)])
            else:
                self._store("reset_h8", list(at), self._of["reset_h"][at])

    def _store(self, name: str, at: list[Expr | int], value: Expr) -> None:
        steps = tirx.round(value / self._of["state_scale"][0])
        whole = steps.astype("int32") + zero_point(self._dot)
        build.buffer_store(self._of[name], whole.astype(self._dot.data), at)


class IntegerGemv:
    """GEMV of one tile and a block of rows; ``buffer`` (1, row, gate, unit) holds the result.

    Args:
        recurrence: The layer.
        tiling: Its layout, with a dot-product instruction.
        buffers: Buffers of the kernel, by name.
        phase: The phase.
        place: The tile and the rows.
    """

    def __init__(
        self,
        recurrence: Recurrence,
        tiling: RecurrenceTiling,
        buffers: dict[str, tirx.Buffer],
        phase: int,
        place: RowBlock,
    ) -> None:
        assert tiling.dot is not None
        self._r, self._dot, self._of = recurrence, tiling.dot, buffers
        self._phase, self._place = phase, place
        self._gates = recurrence.phases[phase]
        self._lanes = tiling.lanes
        used = place.rows * len(self._gates)
        self._parts = max(1, min(_MOST_PARTS, tiling.accumulators // used))
        shape = (self._parts, place.rows, len(self._gates), self._lanes)
        self._sums = build.alloc_buffer(shape, "int32", scope="local")
        self.buffer = build.alloc_buffer((1, *shape[1:]), "float32", scope="local")

    def emit(self) -> None:
        """Emit the GEMV."""
        for part in range(self._parts):
            for row, gate in self._each():
                with build.vectorized(self._lanes) as unit:
                    first = tirx.const(0, "int32")
                    if part == 0 and "weight_offset" in self._of:
                        first = self._of["weight_offset"][self._at(gate, unit)]
                    build.buffer_store(self._sums, first, [part, row, gate, unit])
        words = int(self._of[f"weight{self._phase}"].shape[2])
        whole, rest = divmod(words, self._parts)
        if whole:
            with build.serial(whole) as block:
                for part in range(self._parts):
                    self._add(block * self._parts + part, part)
        for n in range(rest):
            self._add(tirx.IntImm("int32", whole * self._parts + n), n)
        for row, gate in self._each():
            with build.vectorized(self._lanes) as unit:
                total = self._sums[0, row, gate, unit]
                for part in range(1, self._parts):
                    total = total + self._sums[part, row, gate, unit]
                scale = self._of["weight_scale"][self._at(gate, unit)] * self._of["state_scale"][0]
                value = total.astype("float32") * scale
                build.buffer_store(self.buffer, value, [0, row, gate, unit])

    def _each(self) -> list[tuple[int, int]]:
        return [(row, gate) for row in range(self._place.rows) for gate in range(len(self._gates))]

    def _at(self, gate: int, unit: Expr) -> tuple[Expr | int, ...]:
        place = self._place
        return (place.direction, self._gates[gate], place.tile * self._lanes + unit)

    def _add(self, word: Expr, part: int) -> None:
        """Emit the dot products of a word of the state: as many values as a lane accumulates."""
        dot, lanes, place = self._dot, self._lanes, self._place
        weight = self._of[f"weight{self._phase}"]
        for row in range(place.rows):
            data = self._state(row, word)
            for gate in range(len(self._gates)):
                packed = weight.vload(
                    [place.direction, place.tile, word, gate, 0, 0],
                    f"{dot.weight}x{lanes * dot.depth}",
                )
                at = [part, row, gate, tirx.Ramp(0, 1, lanes)]
                sums = self._sums.vload([part, row, gate, 0], f"int32x{lanes}")
                build.buffer_store(self._sums, dot.emit(sums, data, packed), at)

    def _state(self, row: int, word: Expr) -> Expr:
        """Return a word of the state in each lane."""
        dot = self._dot
        at = (self._place.direction, self._place.first_row + row, word * dot.depth)
        if self._phase:
            values = self._of["reset_h8"].vload(list(at), f"{dot.data}x{dot.depth}")
        else:
            first = self._place.step % 2
            values = self._of["h8"].vload([first, *at], f"{dot.data}x{dot.depth}")
        every = tirx.Broadcast(tirx.reinterpret("int32", values), self._lanes)
        return tirx.reinterpret(f"{dot.data}x{self._lanes * dot.depth}", every)
