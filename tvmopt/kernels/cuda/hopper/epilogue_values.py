"""How sums become results: the epilogue, and where each of them is in the output."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.emit import Barriers, Scalar, const, copy
from tvmopt.kernels.cuda.hopper.epilogue import Epilogue, split_runs
from tvmopt.kernels.cuda.hopper.parameters import Parameters
from tvmopt.kernels.cuda.hopper.residual import Residual


@dataclasses.dataclass(frozen=True)
class Tile:
    """Where a tile begins.

    Attributes:
        row: Its first row.
        column: Its first column.
        batch: Which product of the batch.
        index: Number of the tile along the rows.
    """

    row: Any
    column: Any
    batch: Any
    index: Any


class Finishing(abc.ABC):
    """The part of a kernel that finishes sums, which are in the registers ``_sums``.

    Attributes:
        out_shape: The output's extents as :meth:`place` indexes it.
    """

    out_shape: tuple[Any, ...]
    # The warpgroup, warp, lane and thread (of the warpgroup) that runs, and its block's rank.
    group: Any
    warp: Any
    lane: Any
    thread: Any
    rank: Any
    # Registers of the sums; what is on its way out, in shared memory, and to other blocks' threads.
    _sums: Any
    leaving: Any
    exchanged: Any
    # The map by which they leave; what is loaded there before has a barrier for each warpgroup.
    out_map: Any
    arriving: Barriers
    _residual_phase: Scalar
    _chunk: int

    def __init__(
        self, config: Config, accumulator: str, out_dtype: str, ending: Epilogue,
        parameters: Parameters,
    ) -> None:  # fmt: skip
        self.config = config
        self.accumulator = accumulator
        self.out_dtype = out_dtype
        self.ending = ending
        self.out = parameters.out
        self.inputs = parameters.inputs
        self.residual: Residual | None = None
        self._residual_map: Any = None
        self._splits: dict[int, tuple[Epilogue, tuple[tuple[Any, Any], ...]]] = {}

    @abc.abstractmethod
    def place(self, tile: Tile, row: Any, column: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Where a row and a column of C are in the output.

        Returns:
            The output's indices; and these again, each with the extent that it may reach, or None
            where it cannot.
        """

    @abc.abstractmethod
    def corner_of(self, tile: Tile, group: Any, first: int) -> list[Any]:
        """Where 128 bytes of each row begin that one warpgroup stores, as the output's map counts.

        Args:
            tile: The tile.
            group: The warpgroup.
            first: How far they are along the rows of C from where the warpgroup's part begins.
        """

    def _sum(self, index: int) -> Any:
        value = self._sums[index]
        return T.cast(value, "int32") if self.accumulator == "int32" else value

    def _finish(
        self, values: list[Any], tile: Tile, row: Any, column: Any, clamp: bool,
        residuals: Sequence[Any] = (),
    ) -> list[Any]:  # fmt: skip
        """The epilogue of neighbours in one row.

        Args:
            values: Their sums.
            tile: The tile.
            row: Their row of C (with exchanged operands, too).
            column: The column of the first, a multiple of their number.
            clamp: Whether places may be out of range, in which case others are read.
            residuals: Their elements of the residual.
        """
        if not self.ending.has_place:
            return [self.ending.at(value, ()) for value in values]
        count = len(values)
        ending, runs = self._split(count)
        indices, bounds = self.place(tile, row, column)
        last = bounds[-1][1]
        together = not clamp or last is None or (isinstance(last, int) and last % count == 0)
        if clamp:
            indices = [i if b is None else T.min(i, _less(b, 1)) for i, b in bounds]
            if last is not None and together:
                indices[-1] = T.min(column, _less(last, count))
        buffers = list(zip(self.ending.inputs, self.inputs, strict=True))
        if not together:
            ending, runs = self.ending, ()
        read = [
            (var, self._read(dataclasses.replace(ending, expr=load), indices, buffers, count))
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
            done.append(ending.at(value, here, buffers, known))
        return done

    def _read(self, load: Epilogue, indices: list[Any], buffers: Any, count: int) -> Any:
        """Neighbours of an input, read at once."""
        first = load.at(tirx.const(0, self.accumulator), indices, buffers)
        dtype = str(first.source.dtype)
        found = build.alloc_local([count], dtype)
        size = count * int(first.source.dtype.itemsize)
        copy(found, T.address_of(first), size)
        return found

    def _split(self, count: int) -> tuple[Epilogue, tuple[tuple[Any, Any], ...]]:
        if count == 1:
            return self.ending, ()
        if count not in self._splits:
            self._splits[count] = split_runs(self.ending, count)
        return self._splits[count]


def _less(bound: Any, count: int) -> Any:
    return const(bound - count) if isinstance(bound, int) else bound - count
