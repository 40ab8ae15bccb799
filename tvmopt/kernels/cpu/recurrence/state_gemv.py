"""GEMV of the state and the recurrent weight, for one tile and a block of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cpu.recurrence.input_gemm import BlockGemm
from tvmopt.kernels.cpu.recurrence.tiling import RecurrenceTiling
from tvmopt.kernels.recurrence import Recurrence
from tvmopt.kernels.recurrence.cell import RowBlock

# Most partial accumulators; independent ones hide the latency of FMA.
_MOST_PARTS = 8
# Most values of k beside one feature of the input.
_MOST_BESIDE = 16


class StateGemv:
    """Accumulators (part, row, gate, unit); part 0 holds the result.

    Args:
        recurrence: The layer.
        tiling: Its layout.
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
        self._r, self._tiling, self._of = recurrence, tiling, buffers
        self._phase, self._place = phase, place
        self._gates = len(recurrence.phases[phase])
        self._used = place.rows * self._gates
        shape = (self._parts(tiling.accumulators), place.rows, self._gates, tiling.lanes)
        self.buffer = build.alloc_buffer(shape, "float32", scope="local")

    def emit(self) -> None:
        """Emit the GEMV."""
        parts = self._parts(self._tiling.accumulators)
        self._clear(parts)
        self._add(0, parts)
        self._join(parts)

    def emit_beside(self, groups: Sequence[BlockGemm], step: Expr) -> None:
        """Emit the GEMV, and within it a part of the input's GEMM.

        Args:
            groups: The input's GEMM for the next block of steps, by groups of gates.
            step: Step of this block; each multiplies as many features.
        """
        most = max(group.registers + group.gates for group in groups)
        parts = self._parts(self._tiling.registers - most - 1)
        parts = min(parts, int(self.buffer.shape[0]))
        self._clear(parts)
        done = 0
        for group in groups:
            done += self._emit_group(group, step, done, self._r.hidden // len(groups), parts)
        self._add(done, parts)
        self._join(parts)

    def _emit_group(self, group: BlockGemm, step: Expr, first: int, values: int, parts: int) -> int:
        """Emit a group's part, beside at most ``values`` values of the state; return how many."""
        features, rest = divmod(group.features, group.steps)
        together = beside = 0
        group.load(step == 0)
        if features:
            beside = max(1, min(_MOST_BESIDE, values // features))
            together = min(features, values // beside)
        if together:
            with build.serial(together) as block:
                for n in range(beside):
                    self._every(1, self._added(first + block * beside + n), part=n % parts)
                group.add(step * features + block)
        if features > together:
            with build.serial(features - together) as more:
                group.add(step * features + together + more)
        if rest:
            with build.If(step == group.steps - 1), build.Then(), build.serial(rest) as more:
                group.add(features * group.steps + more)
        group.store()
        return together * beside

    def _parts(self, registers: int) -> int:
        parts = 1
        while parts < _MOST_PARTS and 2 * parts * self._used <= registers:
            parts *= 2
        return parts

    def _clear(self, parts: int) -> None:
        self._every(parts, lambda *at: tirx.const(0, "float32"))

    def _add(self, first: int, parts: int) -> None:
        """Emit the multiply-adds from value ``first`` of the state on.

        Each part reads a separate range of the weight: a core reads several streams faster than
        one (1.2 to 1.4 times from L2 and L3, measured on a Zen 3).
        """
        whole = (self._r.hidden - first) // parts
        if whole:
            with build.serial(whole) as k:
                for part in range(parts):
                    self._every(1, self._added(first + part * whole + k), part=part)
        for k in range(first + whole * parts, self._r.hidden):
            self._every(1, self._added(tirx.IntImm("int32", k)))

    def _join(self, parts: int) -> None:
        while parts > 1:
            parts //= 2
            self._every(
                parts,
                lambda part, *at, half=parts: (
                    self.buffer[part, *at] + self.buffer[part + half, *at]
                ),
            )

    def _added(self, k: Expr) -> Callable[[int, int, int, Expr], Expr]:
        weight, place = self._of[f"weight{self._phase}"], self._place

        def value(part: int, row: int, gate: int, unit: Expr) -> Expr:
            own = weight[place.direction, place.tile, k, gate, unit].astype("float32")
            return self.buffer[part, row, gate, unit] + self._state(row, k) * own

        return value

    def _every(
        self, parts: int, value: Callable[[int, int, int, Expr], Expr], part: int = 0
    ) -> None:
        """Replace the accumulators of ``parts`` parts, from ``part`` on."""
        for own in range(part, part + parts):
            for row in range(self._place.rows):
                for gate in range(self._gates):
                    with build.vectorized(self._tiling.lanes) as unit:
                        build.buffer_store(
                            self.buffer, value(own, row, gate, unit), [own, row, gate, unit]
                        )

    def _state(self, row: int, k: Expr) -> Expr:
        at = (self._place.direction, self._place.first_row + row, k)
        return (
            self._of["reset_h"][at] if self._phase else self._of["h"][(self._place.step % 2, *at)]
        )
