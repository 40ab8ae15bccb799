"""How the sums of a tile leave: through the epilogue, and by the copy engine or plain stores."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from .config import Config
from .emit import (
    Barriers,
    Scalar,
    as_register,
    const,
    copy,
    quotient,
    remainder,
    store_four,
    store_pair,
    tma_load,
    tma_store,
    when,
)
from .epilogue import Epilogue, split_runs
from .parameters import Parameters
from .problem import BYTES, ceil_div
from .residual import Residual, residual_of

# How many pieces of a staged tile a thread reads before it stores them.
_TOGETHER = (4, 2, 1)
_PACK = {"float16": "cvt.rn.f16x2.f32", "bfloat16": "cvt.rn.bf16x2.f32"}


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


class Storing(abc.ABC):
    """The part of a kernel that stores a tile; the sums are in the registers ``_sums``.

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
    def corner_of(self, tile: Tile, group: Any, chunk: int) -> list[Any]:
        """Where a chunk of one warpgroup begins, 128 bytes a row, as maps of the output count."""

    def _load_residual_ahead(self, tensor_of: Callable[[Any, str], Any]) -> list[Any]:
        """Have an input that is read where the output is written loaded by the copy engine.

        It comes to where the results leave from, so there must be room for all of a tile's.

        Args:
            tensor_of: Gives the map of a tensor of the output's shape, and of a type.

        Returns:
            The maps that it takes.
        """
        c = self.config
        whole = c.columns * BYTES[self.out_dtype] == 128 * c.buffers
        static = all(isinstance(e, int) for e in self.out_shape)
        if c.staged or c.swap or c.ranks > 1 or not whole or not static:
            return []
        self.residual = residual_of(self.ending, self.out_shape, self.out_dtype)
        if self.residual is None:
            return []
        self.ending = self.residual.ending
        source = self.inputs[self.residual.number]
        self._residual_map = tensor_of(source, str(source.dtype))
        return [self._residual_map]

    def _load_residual(self, tile: Tile) -> None:
        """Load a tile's residual, once the results before have left; of one warpgroup."""
        if self.residual is None:
            return
        c = self.config
        with when(self.thread < 1):
            build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(0))
            self.arriving.expect(self.group, c.buffers * 64 * c.atoms * 128)
            for chunk in range(c.buffers):
                tma_load(
                    self.leaving.ptr_to([self.group * c.buffers + chunk, 0]),
                    self._residual_map,
                    self.corner_of(tile, self.group, chunk),
                    self.arriving.pointer(self.group),
                )

    def _residuals(self, buffer: Any, line: Any, column: Any) -> list[Any]:
        """Two neighbours of the residual, of one line of a buffer of 128 bytes a line."""
        if self.residual is None:
            return []
        dtype = str(self.residual.value.ty.dtype)
        size = BYTES[dtype]
        piece = quotient(column * size, 16) ^ remainder(line, 8)
        place = line * (128 // size) + piece * (16 // size) + remainder(column, 16 // size)
        found = build.alloc_local([2], dtype)
        copy(found, self.leaving.ptr_to([buffer, place]), 2 * size)  # of as many bytes each
        return [found[0], found[1]]

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

    def _send(self, tile: Tile, columns: range) -> None:
        """Round sums into shared memory, and let the copy engine store them.

        Args:
            tile: The tile.
            columns: Which of its columns, whole lines of 128 bytes.
        """
        c = self.config
        width = 128 // BYTES[self.out_dtype]
        per = c.columns // 2
        first_row = build.Bind(tile.row + self.group * (64 * c.atoms))

        def pair(index: int, row: Any, column: Any) -> list[Any]:
            sums = [self._sum(index), self._sum(index + 1)]
            chunk = self._chunk
            residuals = self._residuals(
                self.group * c.buffers + chunk, row, column - chunk * width
            )
            done = self._finish(
                sums, tile, first_row + row, tile.column + column, True, residuals
            )
            return [as_register(d, self.out_dtype) for d in done]

        if self.residual is not None:
            self.arriving.wait(self.group, self._residual_phase.value)
            self._residual_phase.set(self._residual_phase.value ^ 1)
        for chunk in range(columns.start // width, columns.stop // width):
            self._chunk = chunk

            def fill(buffer: Any, chunk: int = chunk) -> None:
                for m in range(c.atoms):
                    base = m * per + chunk * width // 2
                    if self.out_dtype in _PACK:
                        self._matrices(buffer, m, base, chunk * width, pair)
                    else:
                        self._pairs(buffer, m, base, chunk * width, pair)

            self._send_chunk(fill, chunk, self.corner_of(tile, self.group, chunk))

    def _send_chunk(self, fill: Callable[[Any], None], chunk: int, corner: list[Any]) -> None:
        """Have the copy engine store what ``fill`` writes into a buffer, once that is free."""
        c = self.config
        buffer = self.group * c.buffers + chunk % c.buffers
        if self.residual is None:
            with when(self.thread < 1):
                build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(c.buffers - 1))
            build.evaluate(T.cuda.warpgroup_sync(self.group + 1))
        fill(buffer)
        build.evaluate(T.ptx.fence.proxy.async_.shared__cta())
        build.evaluate(T.cuda.warpgroup_sync(self.group + 1))
        with when(self.thread < 1):
            tma_store(self.out_map, corner, self.leaving.ptr_to([buffer, 0]))
            build.evaluate(T.ptx.cp.async_.bulk.commit_group())

    def _send_exchanged(self, tile: Tile, columns: range) -> None:
        """The same of exchanged operands: 64 rows of the tile are 128 bytes of rows of C."""
        first = dataclasses.replace(tile, column=tile.column + columns.start)
        for m in range(self.config.atoms):

            def fill(buffer: Any, m: int = m) -> None:
                for column in range(columns.start, columns.stop, 16):
                    blocks = min(16, columns.stop - column) // 8
                    self._turned(buffer, tile, m, column, column - columns.start, blocks)

            self._send_chunk(fill, m, self.corner_of(first, self.group, m))

    def _turned(
        self, buffer: Any, tile: Tile, m: int, column: int, line: int, blocks: int
    ) -> None:
        """16-bit results of one or two blocks of 8 columns, which become as many lines."""
        lane = self.lane
        packed = build.alloc_local([2 * blocks], "uint32")
        for i in range(2 * blocks):
            row = self.group * (64 * self.config.atoms) + m * 64 + self.warp * 16
            row = build.Bind(tile.row + row + quotient(lane, 4) + 8 * (i % 2))
            col = build.Bind(tile.column + column + 8 * (i // 2) + remainder(lane, 4) * 2)
            index = m * self.config.columns // 2 + column // 2 + 2 * i
            ends = [
                self._finish([self._sum(index + e)], tile, col + e, row, True)[0] for e in range(2)
            ]
            low, high = (as_register(end, self.out_dtype) for end in ends)
            build.evaluate(T.ptx[_PACK[self.out_dtype]](packed[i], high, low))
        there = line + 8 * quotient(lane, 16) + remainder(lane, 8)
        piece = (self.warp * 2 + remainder(quotient(lane, 8), 2)) ^ remainder(lane, 8)
        if blocks == 1:  # the other lanes' addresses are not read
            there = line + remainder(lane, 8)
        build.evaluate(
            T.ptx[f"stmatrix.sync.aligned.m8n8.x{2 * blocks}.trans.shared.b16"](
                self.leaving.ptr_to([buffer, there * 64 + piece * 8]),
                *(packed[i] for i in range(2 * blocks)),
            )
        )

    def _matrices(self, buffer: Any, m: int, base: int, column: int, pair: Any) -> None:
        """16-bit results, four 8 x 8 matrices at a time."""
        lane = self.lane
        for q in range(4):
            packed = build.alloc_local([4], "uint32")
            for i in range(4):
                row = m * 64 + self.warp * 16 + quotient(lane, 4) + 8 * (i % 2)
                col = column + q * 16 + 8 * (i // 2) + remainder(lane, 4) * 2
                index = base + q * 8 + 2 * i
                low, high = pair(index, row, col)
                build.evaluate(T.ptx[_PACK[self.out_dtype]](packed[i], high, low))
            line = m * 64 + self.warp * 16 + remainder(lane, 16)
            piece = (q * 2 + quotient(lane, 16)) ^ remainder(lane, 8)
            build.evaluate(
                T.ptx["stmatrix.sync.aligned.m8n8.x4.shared.b16"](
                    self.leaving.ptr_to([buffer, line * 64 + piece * 8]),
                    packed[0], packed[1], packed[2], packed[3],
                )
            )  # fmt: skip

    def _pairs(self, buffer: Any, m: int, base: int, column: int, pair: Any) -> None:
        """Results of other widths, two neighbours at a time."""
        size = BYTES[self.out_dtype]
        width = 128 // size
        lane = self.lane
        for j in range(width // 8):
            for h in range(2):
                row = m * 64 + self.warp * 16 + quotient(lane, 4) + 8 * h
                col = j * 8 + remainder(lane, 4) * 2
                index = base + j * 4 + 2 * h
                piece = quotient(col * size, 16) ^ remainder(row, 8)
                place = row * width + piece * (16 // size) + remainder(col, 16 // size)
                store_pair(
                    self.leaving.ptr_to([buffer, place]),
                    self.out_dtype,
                    *pair(index, row, column + col),
                )

    def _keep(self, columns: range) -> None:
        """Put the sums of these columns into the staged tile, as C lies in memory."""
        c = self.config
        per = c.columns // 2
        for m in range(c.atoms):
            row = self.group * (64 * c.atoms) + m * 64 + self.warp * 16 + quotient(self.lane, 4)
            for j in range(columns.start // 8, columns.stop // 8):
                for h in range(2):
                    index = m * per + j * 4 + 2 * h
                    col = j * 8 - columns.start + remainder(self.lane, 4) * 2
                    if c.swap:
                        for e in range(2):
                            build.buffer_store(
                                self.leaving,
                                self._sum(index + e),
                                [(col + e) * c.pitch + row + 8 * h],
                            )
                    else:
                        store_pair(
                            self.leaving.ptr_to([(row + 8 * h) * c.pitch + col]),
                            self.accumulator,
                            self._sum(index),
                            self._sum(index + 1),
                        )

    def _store_staged(self, tile: Tile, columns: range) -> None:
        """Store these columns from the staged tile, neighbouring threads neighbouring elements."""
        c = self.config
        here = tile.column + columns.start
        if c.swap:
            (height, width), (top, begin) = (len(columns), c.rows), (here, tile.row)
        else:
            (height, width), (top, begin) = (c.rows, len(columns)), (tile.row, here)
        across = int(self.out_shape[-1])
        out = build.decl_buffer(self.out_shape, self.out_dtype, data=self.out.data)
        # As many at once as are in one row; neighbouring threads store neighbours, whatever it is.
        at_once = next(v for v in (4, 2, 1) if across % v == 0)
        threads = c.consumers * 128
        pieces = height * width // at_once
        rounds = ceil_div(pieces, threads)
        together = 1 if pieces % threads else next(v for v in _TOGETHER if rounds % v == 0)
        me = build.Bind(self.group * 128 + self.thread)

        def load(piece: Any) -> tuple[Any, Any, Any]:
            row = build.Bind(quotient(piece, width // at_once))
            col = build.Bind(remainder(piece, width // at_once) * at_once)
            kept = build.alloc_local([at_once], self.accumulator)
            copy(kept, self.leaving.ptr_to([row * c.pitch + col]), 4 * at_once)
            return build.Bind(top + row), build.Bind(begin + col), kept

        def store(row: Any, col: Any, kept: Any) -> None:
            indices, bounds = self.place(tile, row, col)
            inside = [index < bound for index, bound in bounds if bound is not None]
            with when(tirx.all(*inside)) if inside else nullcontext():
                sums = [kept[e] for e in range(at_once)]
                done = self._finish(sums, tile, row, col, clamp=False)
                registers = [as_register(d, self.out_dtype) for d in done]
                if at_once == 1:
                    build.buffer_store(out, done[0], indices)
                elif at_once == 2:
                    store_pair(out.ptr_to(indices), self.out_dtype, *registers)
                else:
                    store_four(out.ptr_to(indices), self.out_dtype, registers)

        with build.serial(0, rounds // together) as i:
            first = build.Bind(i * (threads * together) + me)
            with when(first < pieces) if pieces % threads else nullcontext():
                # Reading does not wait for what is stored, nor each for the one before.
                loaded = [load(build.Bind(first + threads * e)) for e in range(together)]
                for one in loaded:
                    store(*one)


def _less(bound: Any, count: int) -> Any:
    return const(bound - count) if isinstance(bound, int) else bound - count
