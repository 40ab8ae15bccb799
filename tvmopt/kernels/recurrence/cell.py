"""The gates of an LSTM, GRU or RNN cell, of one tile of hidden units and one row of the batch.

When a row begins, registers hold the product of the state and the recurrent weight for each gate. A
row adds the product of the input, computes the gates in place, and writes the state and the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.recurrence.activations import activated
from tvmopt.kernels.recurrence.layer import Activation, Recurrence


@dataclasses.dataclass(frozen=True)
class RowBlock:
    """Where a block of rows of one tile is: all expressions but the number of rows."""

    step: Expr
    direction: Expr
    tile: Expr
    first_row: Expr
    rows: int


class CellRow:
    """Gates and state of the units of a tile, for one row of the batch."""

    def __init__(
        self,
        recurrence: Recurrence,
        lanes: int,
        buffers: dict[str, tirx.Buffer],
        place: RowBlock,
        row: int,
        sums: tirx.Buffer,
        input_products: Callable[[int, Expr], Expr] | None = None,
    ) -> None:
        """Describe a row.

        Args:
            recurrence: The layer.
            lanes: Units of a tile.
            buffers: Parameters and other buffers of the kernel, by name.
            place: The block of rows.
            row: Row in the block.
            sums: Accumulators (1, row, gate, unit) of the state's GEMV.
            input_products: Returns the product of the input, plus bias, of a gate and a unit of the
                tile; without it they are read from the parameter ``gates``.
        """
        self._r, self._lanes, self._of = recurrence, lanes, buffers
        self._place, self._row_in_block, self._sums = place, row, sums
        self._input_products = input_products or self._from_gates
        self._row = place.first_row + row
        self._unit = place.tile * lanes

    def emit(self, phase: int) -> None:
        """Emit the gates of one phase, with the activations of the row's direction."""
        emit = {"LSTM": self._lstm, "RNN": self._rnn}.get(self._r.cell, self._gru)
        first, *others = dict.fromkeys(self._r.activations)
        if not others:
            emit(first, phase)
            return
        with build.If(self._place.direction == 0):
            with build.Then():
                emit(first, phase)
            with build.Else():
                emit(others[0], phase)

    def _lstm(self, activations: Sequence[Activation], phase: int) -> None:
        f, g, h = activations
        i, o, forget, c = range(4)
        cell = self._of["y_c"]
        for gate, place in ((i, 0), (forget, 2)):
            self._store_sum(gate, lambda j, n=place: self._peephole(n, j, cell[self._at(j)]))  # type: ignore[misc]
        self._store_sum(c)
        self._each(i, lambda j: activated(f, self._clipped(i, j)))
        if self._r.input_forget:
            self._each(forget, lambda j: tirx.const(1, "float32") - self._sum(i, j))
        else:
            self._each(forget, lambda j: activated(f, self._clipped(forget, j)))
        self._each(c, lambda j: activated(g, self._clipped(c, j)))
        self._each(
            c,
            lambda j: self._sum(forget, j) * cell[self._at(j)] + self._sum(i, j) * self._sum(c, j),
        )
        self._store_sum(o, lambda j: self._peephole(1, j, self._sum(c, j)))
        self._each(o, lambda j: activated(f, self._clipped(o, j)))
        self._each(o, lambda j: self._sum(o, j) * activated(h, self._sum(c, j)))
        self._commit(o, c)

    def _rnn(self, activations: Sequence[Activation], phase: int) -> None:
        self._store_sum(0)
        self._each(0, lambda j: activated(activations[0], self._clipped(0, j)))
        self._commit(0)

    def _gru(self, activations: Sequence[Activation], phase: int) -> None:
        f, g = activations
        two = len(self._r.phases) > 1
        if phase == 0:
            for gate in (0, 1):
                self._store_sum(gate)
                self._each(gate, lambda j, n=gate: activated(f, self._clipped(n, j)))  # type: ignore[misc]
        if two and phase == 0:
            self._keep("update", lambda j: self._sum(0, j))
            self._keep("reset_h", lambda j: self._sum(1, j) * self._last(j))
            return
        hidden = 0 if two else 2
        if not two:
            bias = self._of.get("bias")
            self._each(
                hidden,
                lambda j: (
                    self._sum(1, j)
                    * (
                        self._sum(hidden, j)
                        if bias is None
                        else self._sum(hidden, j) + bias[self._place.direction, self._unit + j]
                    )
                ),
            )
        self._store_sum(hidden, gate=2)
        self._each(hidden, lambda j: activated(g, self._clipped(hidden, j)))

        def blended(j: Expr) -> Expr:
            update = self._of["update"][self._at(j)] if two else self._sum(0, j)
            one = tirx.const(1, "float32")
            return (one - update) * self._sum(hidden, j) + update * self._last(j)

        self._each(hidden, blended)
        self._commit(hidden)

    def _at(self, j: Expr) -> tuple[Expr, ...]:
        """Index of a unit in a buffer (direction, row, unit)."""
        return (self._place.direction, self._row, self._unit + j)

    def _last(self, j: Expr) -> Expr:
        return self._of["h"][(self._place.step % 2, *self._at(j))]

    def _sum(self, n: int, j: Expr) -> Expr:
        return self._sums[0, self._row_in_block, n, j]

    def _clipped(self, n: int, j: Expr) -> Expr:
        value = self._sum(n, j)
        if not self._r.clip:
            return value
        bound = tirx.const(self._r.clip, "float32")
        return tirx.max(tirx.min(value, bound), -bound)

    def _peephole(self, n: int, j: Expr, cell: Expr) -> Expr | None:
        weight = self._of.get("peepholes")
        if weight is None:
            return None
        return weight[self._place.direction, n, self._unit + j] * cell

    def _each(self, n: int, value: Callable[[Expr], Expr]) -> None:
        """Replace the accumulators of gate ``n``."""
        with build.vectorized(self._lanes) as j:
            build.buffer_store(self._sums, value(j), [0, self._row_in_block, n, j])

    def _keep(self, name: str, value: Callable[[Expr], Expr]) -> None:
        with build.vectorized(self._lanes) as j:
            build.buffer_store(self._of[name], value(j), list(self._at(j)))

    def _store_sum(
        self, n: int, extra: Callable[[Expr], Expr | None] | None = None, gate: int | None = None
    ) -> None:
        """Add the input's product, and ``extra``, to the accumulators of gate ``n``."""
        which = n if gate is None else gate

        def value(j: Expr) -> Expr:
            total = self._input_products(which, j) + self._sum(n, j)
            more = None if extra is None else extra(j)
            return total if more is None else total + more

        self._each(n, value)

    def _from_gates(self, gate: int, j: Expr) -> Expr:
        at = (self._time(), self._row, self._place.direction, gate, self._unit + j)
        return self._of["gates"][at]

    def _valid(self) -> Expr | None:
        return None if "lengths" not in self._of else self._place.step < self._length()

    def _length(self) -> Expr:
        """Return the length of the row's sequence; one that is too long counts as all steps."""
        return tirx.min(self._of["lengths"][self._row], self._r.steps)

    def _time(self) -> Expr:
        """Return the step of the sequence that this step reads and writes."""
        step, valid = self._place.step, self._valid()
        if not any(self._r.reverse):
            return step
        end = self._r.steps if valid is None else self._length()
        back = end - 1 - step
        if valid is not None:
            back = tirx.Select(valid, back, step)
        if all(self._r.reverse):
            return back
        return tirx.Select(self._place.direction == 1, back, step)

    def _commit(self, h: int, c: int | None = None) -> None:
        """Write the new state and the output; past the end of a sequence, keep the state."""
        valid = self._valid()
        if valid is None:
            self._write(lambda j: self._sum(h, j), c, lambda j: self._sum(h, j))
            return
        with build.If(valid):
            with build.Then():
                self._write(lambda j: self._sum(h, j), c, lambda j: self._sum(h, j))
            with build.Else():
                self._write(self._last, None, lambda j: tirx.const(0, "float32"))

    def _write(self, h: Callable[[Expr], Expr], c: int | None, y: Callable[[Expr], Expr]) -> None:
        if c is not None:
            self._keep("y_c", lambda j: self._sum(c, j))
        with build.vectorized(self._lanes) as j:
            at = [(self._place.step + 1) % 2, *self._at(j)]
            build.buffer_store(self._of["h"], h(j), at)
        with build.vectorized(self._lanes) as j:
            at = [self._time(), self._place.direction, self._row, self._unit + j]
            build.buffer_store(self._of["y"], y(j), at)
