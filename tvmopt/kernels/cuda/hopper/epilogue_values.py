"""Apply the epilogue to the wgmma accumulator fragments.

Accumulator fragment of ``m64nN`` in one thread: warp ``w`` of the warpgroup holds rows 16 w to
16 w + 15. Its rows ``r`` and ``r + 8`` of each 8-column block ``j`` are spread over the lanes::

                     8 j + 0, 1   8 j + 2, 3   8 j + 4, 5   8 j + 6, 7
    row 16 w + 0       lane 0       lane 1       lane 2       lane 3
    row 16 w + 1       lane 4       lane 5       lane 6       lane 7
    ...                ...
    row 16 w + 7       lane 28      lane 29      lane 30      lane 31
    row 16 w + 8 ..    the same lanes, registers + 2

    row = 16 w + lane / 4 + 8 h, column = 8 j + 2 (lane % 4) + e, register 4 j + 2 h + e
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import Barriers, Scalar, const, copy
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, split_runs
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.residual import Residual


@dataclasses.dataclass(frozen=True)
class EpilogueTile:
    """Origin of an output tile.

    Attributes:
        row: First row.
        column: First column.
        batch: Batch index.
        index: Index of the tile along the rows.
    """

    row: Any
    column: Any
    batch: Any
    index: Any


class Finishing(abc.ABC):
    """Part of a kernel that applies the epilogue to the accumulators ``_sums``.

    Attributes:
        out_shape: Extents of the output, as :meth:`place` indexes it.
    """

    out_shape: tuple[Any, ...]
    # Indices of the warpgroup, warp, lane and thread (in the warpgroup); cluster rank of the block.
    group: Any
    warp: Any
    lane: Any
    thread: Any
    rank: Any
    # Accumulator registers; epilogue tile; cluster split-K buffer (both shared).
    _sums: Any
    leaving: Any
    exchanged: Any
    # Descriptor of the TMA stores; one mbarrier for each warpgroup for the prefetched residual.
    out_map: Any
    arriving: Barriers
    _residual_phase: Scalar
    _chunk: int

    def __init__(
        self, config: HopperConfig, accumulator: str, out_dtype: str, epilogue: Epilogue,
        parameters: Parameters,
    ) -> None:  # fmt: skip
        self.config = config
        self.accumulator = accumulator
        self.out_dtype = out_dtype
        self.epilogue = epilogue
        self.out = parameters.out
        self.inputs = parameters.inputs
        self.residual: Residual | None = None
        self._residual_map: Any = None
        self._splits: dict[int, tuple[Epilogue, tuple[tuple[Any, Any], ...]]] = {}

    @abc.abstractmethod
    def place(
        self, tile: EpilogueTile, row: Any, column: Any
    ) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Return where element (row, column) of C lies in the output, with bounds to check.

        Returns:
            The output indices; and the pairs (index, bound), where bound is None if the index
            cannot exceed its extent.
        """

    @abc.abstractmethod
    def corner_of(self, tile: EpilogueTile, group: Any, first: int) -> list[Any]:
        """Return the TMA coordinates of one warpgroup's 128-byte-wide epilogue tile.

        Args:
            tile: The tile.
            group: The warpgroup.
            first: Offset along the rows of C from the first element of the warpgroup's tile.
        """

    def _sum(self, index: int) -> Any:
        value = self._sums[index]
        return T.cast(value, "int32") if self.accumulator == "int32" else value

    def _finish(
        self, values: list[Any], tile: EpilogueTile, row: Any, column: Any, clamp: bool,
        residuals: Sequence[Any] = (),
    ) -> list[Any]:  # fmt: skip
        """Apply the epilogue to neighbouring elements of one row of C.

        Args:
            values: Their accumulators.
            tile: The tile.
            row: Their row of C (also with swapped A and B).
            column: Column of the first one, a multiple of their number.
            clamp: Whether elements may be out of bounds; input indices are then clamped.
            residuals: Their residual elements.

        Returns:
            The values to store.
        """
        if not self.epilogue.has_place:
            return [self.epilogue.at(value, ()) for value in values]
        count = len(values)
        epilogue, runs = self._split(count)
        indices, bounds = self.place(tile, row, column)
        last = bounds[-1][1]
        together = not clamp or last is None or (isinstance(last, int) and last % count == 0)
        if clamp:
            indices = [i if b is None else T.min(i, _less(b, 1)) for i, b in bounds]
            if last is not None and together:
                indices[-1] = T.min(column, _less(last, count))
        buffers = list(zip(self.epilogue.inputs, self.inputs, strict=True))
        if not together:
            epilogue, runs = self.epilogue, ()
        read = [
            (var, self._read(dataclasses.replace(epilogue, expr=load), indices, buffers, count))
            for var, load in runs
        ]
        done = []
        for e, value in enumerate(values):
            here = [*indices[:-1], indices[-1] + e if e else indices[-1]]
            if not together and e:
                here[-1] = T.min(column + e, _less(last, 1))
            known = [(var, buf[e]) for var, buf in read]
            if self.residual is not None:
                known.append((self.residual.value, residuals[e]))
            done.append(epilogue.at(value, here, buffers, known))
        return done

    def _read(self, load: Epilogue, indices: list[Any], buffers: Any, count: int) -> Any:
        """Emit a vector load of ``count`` neighbouring elements of an input."""
        first = load.at(tirx.const(0, self.accumulator), indices, buffers)
        dtype = str(first.source.dtype)
        found = build.alloc_local([count], dtype)
        size = count * int(first.source.dtype.itemsize)
        copy(found, T.address_of(first), size)
        return found

    def _split(self, count: int) -> tuple[Epilogue, tuple[tuple[Any, Any], ...]]:
        if count == 1:
            return self.epilogue, ()
        if count not in self._splits:
            self._splits[count] = split_runs(self.epilogue, count)
        return self._splits[count]


def _less(bound: Any, count: int) -> Any:
    return const(bound - count) if isinstance(bound, int) else bound - count
