"""Apply the epilogue to accumulators: read its inputs in vectors, clamp indices at the edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tvm import tirx
from tvm.ir import Expr
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.emit import const, copy
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, Runs, split_runs
from tvmopt.kernels.cuda.hopper.output import Output
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile


class EpilogueValues:
    """Computes the values to store."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._buffers = list(zip(output.epilogue.inputs, output.inputs, strict=True))
        self._splits: dict[int, tuple[Epilogue, Runs]] = {1: (output.epilogue, ())}

    def __call__(
        self, values: list[Expr], tile: Tile, row: Expr, column: Expr, clamp: bool,
        residuals: Sequence[Expr] = (),
    ) -> list[Expr]:  # fmt: skip
        """Apply the epilogue to neighbouring elements of one row of C.

        Args:
            values: Their accumulators.
            tile: The tile.
            row: Their row of C (also with swapped A and B).
            column: Column of the first one, a multiple of their number.
            clamp: Whether elements may be out of bounds; input indices are then clamped.
            residuals: Their prefetched residual elements.

        Returns:
            The values to store.
        """
        epilogue, residual = self._output.epilogue, self._output.residual
        if not epilogue.has_place:
            return [epilogue.at(value, ()) for value in values]
        count = len(values)
        indices, bounds = self._output.tiling.place(tile, row, column)
        last = bounds[-1][1]
        # A vector is wholly in bounds or wholly out of bounds.
        whole = not clamp or last is None or (isinstance(last, int) and last % count == 0)
        runs: Runs = ()
        if whole:
            if count not in self._splits:
                self._splits[count] = split_runs(epilogue, count)
            epilogue, runs = self._splits[count]
        if clamp:
            indices = [i if b is None else T.min(i, _less(b, 1)) for i, b in bounds]
            if last is not None and whole:
                indices[-1] = T.min(column, _less(last, count))
        loaded = [(var, self._load(epilogue, load, indices, count)) for var, load in runs]
        done = []
        for e, value in enumerate(values):
            here = [*indices[:-1], indices[-1] + e if e else indices[-1]]
            if not whole and e:
                here[-1] = T.min(column + e, _less(last, 1))
            known = [(var, vector[e]) for var, vector in loaded]
            if residual is not None:
                known.append((residual.value, residuals[e]))
            done.append(epilogue.at(value, here, self._buffers, known))
        return done

    def _load(self, epilogue: Epilogue, load: Expr, indices: list[Expr], count: int) -> tirx.Buffer:
        """Emit a vector load of ``count`` neighbouring elements of an input."""
        zero = tirx.const(0, self._output.accumulator)
        first = dataclasses.replace(epilogue, expr=load).at(zero, indices, self._buffers)
        vector = build.alloc_local([count], str(first.source.dtype))
        copy(vector, T.address_of(first), count * int(first.source.dtype.itemsize))
        return vector


def _less(bound: Expr | int, count: int) -> Expr:
    return const(bound - count) if isinstance(bound, int) else bound - count
