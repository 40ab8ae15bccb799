"""The main loop that products of matrices and convolutions share."""

from __future__ import annotations

import abc
import dataclasses
from contextlib import nullcontext
from typing import Any

from tvm import tirx
from tvm.backend.cuda.lang import SMEMPool
from tvm.backend.cuda.tile_primitive.common import smem_desc_add_16B_offset as advance
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx.script.builder import ir as build

from .config import DEPTH_BYTES, Config
from .emit import (
    Barriers,
    Scalar,
    add_four,
    as_register,
    const,
    copy,
    quotient,
    remainder,
    set_registers,
    store_four,
    store_pair,
    sync_threads_of,
    take_four,
    when,
)
from .epilogue import Epilogue, split_runs
from .parameters import Parameters
from .problem import BYTES, ceil_div

_INSTRUCTION = {"float16": "f16", "bfloat16": "bf16", "int8": "s8", "float8_e4m3fn": "e4m3"}
_PACK = {"float16": "cvt.rn.f16x2.f32", "bfloat16": "cvt.rn.bf16x2.f32"}


@dataclasses.dataclass(frozen=True)
class Lines:
    """How an operand lies in one stage, in units of 16 bytes.

    Attributes:
        leading: Distance of blocks of 64 rows, where rows are contiguous.
        stride: Distance of groups of 8 lines.
        swizzle: The pattern in which 16-byte pieces change places: 1, 2, 3 for lines of 32, 64 and
            128 bytes.
        atom: Distance of groups of 64 rows.
        steps: Where each of the four steps of the depth begins.
    """

    leading: int
    stride: int
    swizzle: int
    atom: int
    steps: tuple[int, ...]


def lines_of(major: bool, depth: int) -> Lines:
    """The usual form: lines of 128 bytes, along the depth or (``major`` false) along the rows.

    Args:
        major: Whether the operand is contiguous along the depth.
        depth: Elements of the depth in one stage.
    """
    atom = 64 * DEPTH_BYTES // 16
    if major:
        return Lines(1, 64, 3, atom, (0, 2, 4, 6))
    return Lines(depth * 8, 64, 3, atom, (0, 128, 256, 384))


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


class Kernel(abc.ABC):
    """One kernel under construction.

    Attributes:
        batch: Products that are computed side by side.
        left_major: Whether the operand of the rows is contiguous along the depth.
        right_major: Whether that of the columns is.
        out_shape: The output's extents as :meth:`place` indexes it.
        maps: Descriptors that the copy engine is to have at hand.
    """

    batch = 1
    left_major = True
    right_major = True
    out_shape: tuple[Any, ...]
    maps: list[Any]

    def __init__(
        self, config: Config, dtype: str, out_dtype: str, steps: int, ending: Epilogue,
        parameters: Parameters,
    ) -> None:  # fmt: skip
        self.config = config
        self.dtype = dtype
        self.out_dtype = out_dtype
        self.steps = steps
        self.ending = ending
        self.depth = DEPTH_BYTES // BYTES[dtype]
        self.accumulator = "int32" if dtype == "int8" else "float32"
        self.out = parameters.out
        self.inputs = parameters.inputs
        self._splits: dict[int, tuple[Epilogue, tuple[tuple[Any, Any], ...]]] = {}

    @abc.abstractmethod
    def extents(self) -> tuple[Any, Any]:
        """Rows and columns of the whole, as tiles count them; int32."""

    @abc.abstractmethod
    def load(self, slot: Any, step: Any, tile: Tile, rank: Any) -> None:
        """Fill one stage."""

    @abc.abstractmethod
    def place(self, tile: Tile, row: Any, column: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """The output's indices of a row and a column, each with the extent that bounds it."""

    @abc.abstractmethod
    def store_box(self, tile: Tile, group: Any, chunk: int, source: Any) -> None:
        """Send the rows of one warpgroup, 128 bytes of each, out."""

    # -- the grid ----------------------------------------------------------------------------

    def emit(self) -> None:
        """Emit the device side."""
        build.device_entry()
        with build.attr({"tirx.launch_bounds_min_blocks_per_sm": 1}):
            self._device()

    def _device(self) -> None:
        c = self.config
        rows, columns = self.extents()
        down = _tiles(rows, c.rows * c.cluster)
        across = _tiles(columns, c.columns)
        per_batch = down * across
        total = per_batch * self.batch
        shared = max(c.cluster, c.split)
        if isinstance(total, int):
            groups = min(total, c.sms // shared) if c.persistent else total
        else:
            groups = c.sms // shared
        if shared == 1:
            block, rank = T.cta_id([groups]), const(0)
        else:
            block = T.cluster_id([groups])
            rank = T.cta_id_in_cluster([shared])
        self.group = T.warpgroup_id([c.consumers + 1])
        self.warp = T.warp_id_in_wg([4])
        self.lane = T.lane_id([32])
        self.thread = T.thread_id_in_wg([128])
        self.rank = rank
        self._shared_memory()
        self._walk(block, groups, total, per_batch, down, across)

    def _shared_memory(self) -> None:
        c = self.config
        pool = SMEMPool()
        self.left_ring = pool.alloc((c.stages, c.rows * self.depth), self.dtype, align=1024)
        self.right_ring = pool.alloc((c.stages, c.columns * self.depth), self.dtype, align=1024)
        if not c.staged:
            shape = (c.consumers * c.buffers, 64 * c.atoms * (128 // BYTES[self.out_dtype]))
            self.leaving = pool.alloc(shape, self.out_dtype, align=1024)
        elif c.persistent:
            self.leaving = pool.alloc((c.staged_bytes // 4,), self.accumulator, align=1024)
        else:  # in place of the ring, which is empty by then
            end = pool.offset
            pool.move_base_to(0)
            self.leaving = pool.alloc((c.staged_bytes // 4,), self.accumulator, align=1024)
            pool.move_base_to(max(end, pool.offset))
        self.full = Barriers(pool, c.stages)
        self.empty = Barriers(pool, c.stages)
        pool.commit()
        with when(T.cuda.thread_rank() < 1):
            for descriptor in self.maps:
                build.evaluate(T.ptx.prefetch.tensormap(T.address_of(descriptor)))
            self.full.init(1)
            self.empty.init(c.consumers * c.cluster)
        build.evaluate(T.ptx.fence.mbarrier_init.release.cluster())
        self._sync_blocks()

    def _sync_blocks(self) -> None:
        shared = max(self.config.cluster, self.config.split) > 1
        build.evaluate(T.cuda.cluster_sync() if shared else T.cuda.cta_sync())

    def _walk(
        self, block: Any, groups: int, total: Any, per_batch: Any, down: Any, across: Any
    ) -> None:
        c = self.config
        stage = Scalar("int32", 0)
        phase = Scalar("int32", 0)

        def tile_of(number: Any) -> Tile:
            inner = remainder(number, per_batch) if self.batch > 1 else number
            batch = quotient(number, per_batch) if self.batch > 1 else const(0)
            i, j = _raster(inner, down, across, c.raster)
            if c.cluster > 1:
                i = i * c.cluster + self.rank
            i, j = build.Bind(i), build.Bind(j)
            batch = build.Bind(batch)
            return Tile(
                build.Bind(i * c.rows), build.Bind(j * c.columns), batch, i
            )

        def for_tiles(body: Any) -> None:
            if not c.persistent:
                body(tile_of(block))
                return
            number = Scalar("int32", block)
            with build.While(number.value < total):
                body(tile_of(number.value))
                number.set(number.value + groups)

        def following() -> None:
            stage.set(stage.value + 1)
            with when(stage.value >= c.stages):
                stage.set(0)
                phase.set(phase.value ^ 1)

        self._stage, self._phase, self._following = stage, phase, following
        few, many = c.registers
        with build.If(self.group < c.consumers):
            with build.Then():
                if many:
                    set_registers("inc", many)
                self._prepare()
                for_tiles(self._consume)
                if not c.staged:
                    with when(self.thread < 1):
                        build.evaluate(T.ptx.cp.async_.bulk.wait_group(0))
            with build.Else():
                if few:
                    set_registers("dec", few)
                with when(self.thread < 1):
                    for_tiles(self._produce)
        if c.split > 1:
            self._sync_cluster()
            with when(self.group < c.consumers):
                self._store_staged(tile_of(block))
        if max(c.cluster, c.split) > 1:
            self._sync_cluster()

    def _sync_cluster(self) -> None:
        build.evaluate(T.cuda.warp_sync())
        build.evaluate(T.cuda.cluster_sync())

    def _range(self) -> tuple[Any, Any]:
        """First step of the depth, and how many, of this thread block."""
        split = self.config.split
        if split == 1:
            return const(0), const(self.steps)
        first = build.Bind(quotient(self.rank * self.steps, split))
        return first, build.Bind(quotient((self.rank + 1) * self.steps, split) - first)

    def _produce(self, tile: Tile) -> None:
        c = self.config
        first, count = self._range()
        with build.serial(0, count) as k:
            slot = self._stage.value
            self.empty.wait(slot, self._phase.value ^ 1)
            self.full.expect(slot, c.stage_bytes)
            self.load(slot, first + k, tile, self.rank)
            self._following()

    # -- multiplying -------------------------------------------------------------------------

    def _prepare(self) -> None:
        c = self.config
        self._sums = build.alloc_local(
            [c.atoms * c.columns // 2], "uint32" if self.accumulator == "int32" else "float32"
        )
        self._left = self._descriptor(self.left_ring, self.left_lines())
        self._right = self._descriptor(self.right_ring, lines_of(self.right_major, self.depth))
        self._before = Scalar("int32", 0)

    def left_lines(self) -> Lines:
        """How the operand of the rows lies in a stage."""
        return lines_of(self.left_major, self.depth)

    def _descriptor(self, ring: Any, lines: Lines) -> Any:
        result = build.alloc_local([1], "uint64")
        build.evaluate(
            T.cuda.wgmma.encode_matrix_descriptor(
                T.address_of(result[0]),
                ring.ptr_to([0, 0]),
                lines.leading,
                lines.stride,
                lines.swizzle,
            )
        )
        return result

    def _multiply(self, slot: Any, first: Any) -> None:
        c = self.config
        size = BYTES[self.dtype]
        per = c.columns // 2
        kind = _INSTRUCTION[self.dtype]
        types = f"s32.{kind}.{kind}" if self.dtype == "int8" else f"f32.{kind}.{kind}"
        name = f"wgmma.mma_async.sync.aligned.m64n{c.columns}k{32 // size}.{types}"
        group = c.atoms * 64 * DEPTH_BYTES // 16
        left = advance(
            self._left[0], slot * (c.rows * DEPTH_BYTES // 16) + self.group * group
        )
        right = advance(self._right[0], slot * (c.columns * DEPTH_BYTES // 16))
        rows, columns = self.left_lines(), lines_of(self.right_major, self.depth)
        for k in range(DEPTH_BYTES // 32):
            for m in range(c.atoms):
                args = [self._sums[m * per + i] for i in range(per)]
                args.append(advance(left, rows.steps[k] + m * rows.atom))
                args.append(advance(right, columns.steps[k]))
                args.append(T.ptx.pred(first) if k == 0 else T.ptx.pred(1))
                if self.dtype != "int8":
                    args += [1, 1]
                if size == 2:
                    args += [0 if self.left_major else 1, 0 if self.right_major else 1]
                build.evaluate(T.ptx[name](*args))

    def _release(self, slot: Any) -> None:
        c = self.config
        if c.cluster == 1:
            self.empty.arrive(slot, self.thread < 1)
        else:
            self.empty.arrive_remote(
                slot, T.min(self.thread, T.int32(c.cluster - 1)), self.thread < c.cluster
            )

    def _consume(self, tile: Tile) -> None:
        c = self.config
        _, count = self._range()
        with build.serial(0, count) as k:
            slot = self._stage.value
            self.full.wait(slot, self._phase.value)
            build.evaluate(T.ptx.wgmma.fence.sync.aligned())
            self._multiply(slot, k > 0)
            build.evaluate(T.ptx.wgmma.commit_group.sync.aligned())
            build.evaluate(T.ptx.wgmma.wait_group.sync.aligned(c.flight))
            if c.flight == 0:
                self._release(slot)
            else:
                with when(k > 0):
                    self._release(self._before.value)
                self._before.set(slot)
            self._following()
        build.evaluate(T.ptx.wgmma.wait_group.sync.aligned(0))
        if c.flight:
            self._release(self._before.value)
        if not c.staged:
            self._send(tile)
            return
        threads = c.consumers * 128
        # Others may still multiply from the ring, or read the tile before.
        sync_threads_of(8, threads)
        self._keep()
        if c.split == 1:
            sync_threads_of(8, threads)
            self._store_staged(tile)

    # -- storing -----------------------------------------------------------------------------

    def _sum(self, index: int) -> Any:
        value = self._sums[index]
        return T.cast(value, "int32") if self.accumulator == "int32" else value

    def _finish(
        self, values: list[Any], tile: Tile, row: Any, column: Any, clamp: bool
    ) -> list[Any]:
        """The epilogue of neighbours in one row.

        Args:
            values: Their sums.
            tile: The tile.
            row: Their row of C (with exchanged operands, too).
            column: The column of the first, a multiple of their number.
            clamp: Whether places may be out of range, in which case others are read.
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
            done.append(ending.at(value, here, buffers, [(var, buf[e]) for var, buf in read]))
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

    def _send(self, tile: Tile) -> None:
        """Round the sums into shared memory, and let the copy engine store them."""
        c = self.config
        width = 128 // BYTES[self.out_dtype]
        per = c.columns // 2
        first_row = build.Bind(tile.row + self.group * (64 * c.atoms))

        def pair(index: int, row: Any, column: Any) -> list[Any]:
            sums = [self._sum(index), self._sum(index + 1)]
            done = self._finish(sums, tile, first_row + row, tile.column + column, clamp=True)
            return [as_register(d, self.out_dtype) for d in done]

        for chunk in range(c.columns // width):
            buffer = self.group * c.buffers + chunk % c.buffers
            with when(self.thread < 1):
                build.evaluate(T.ptx.cp.async_.bulk.wait_group.read(c.buffers - 1))
            build.evaluate(T.cuda.warpgroup_sync(self.group + 1))
            for m in range(c.atoms):
                base = m * per + chunk * width // 2
                if self.out_dtype in _PACK:
                    self._matrices(buffer, m, base, chunk * width, pair)
                else:
                    self._pairs(buffer, m, base, chunk * width, pair)
            build.evaluate(T.ptx.fence.proxy.async_.shared__cta())
            build.evaluate(T.cuda.warpgroup_sync(self.group + 1))
            with when(self.thread < 1):
                self.store_box(tile, self.group, chunk, self.leaving.ptr_to([buffer, 0]))
                build.evaluate(T.ptx.cp.async_.bulk.commit_group())

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

    def _keep(self) -> None:
        """Put the sums into the staged tile, as C lies in memory."""
        c = self.config
        per = c.columns // 2
        for m in range(c.atoms):
            row = self.group * (64 * c.atoms) + m * 64 + self.warp * 16 + quotient(self.lane, 4)
            for j in range(c.columns // 8):
                for h in range(2):
                    index = m * per + j * 4 + 2 * h
                    col = j * 8 + remainder(self.lane, 4) * 2
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

    def _store_staged(self, tile: Tile) -> None:
        """Store the staged tile, neighbouring threads neighbouring elements."""
        c = self.config
        height, width = (c.columns, c.rows) if c.swap else (c.rows, c.columns)
        top, begin = (tile.column, tile.row) if c.swap else (tile.row, tile.column)
        across = int(self.out_shape[-1])
        out = build.decl_buffer(self.out_shape, self.out_dtype, data=self.out.data)
        at_once = next(v for v in (4, 2, 1) if across % v == 0)
        threads = c.consumers * 128
        pieces = height * width // 4
        rounds = ceil_div(pieces, threads * c.split)
        me = build.Bind(self.group * 128 + self.thread)
        with build.serial(0, rounds) as i:
            piece = build.Bind((i * c.split + self.rank) * threads + me)
            row = build.Bind(quotient(piece, width // 4))
            col = build.Bind(remainder(piece, width // 4) * 4)
            whole = pieces % (threads * c.split) == 0
            with nullcontext() if whole else when(piece < pieces):
                kept = self._kept(row * c.pitch + col)
                for first in range(0, 4, at_once):
                    indices, bounds = self.place(tile, top + row, begin + col + first)
                    inside = [index < bound for index, bound in bounds if bound is not None]
                    with when(tirx.all(*inside)) if inside else nullcontext():
                        sums = [kept[e] for e in range(first, first + at_once)]
                        done = self._finish(
                            sums, tile, top + row, begin + col + first, clamp=False
                        )
                        if at_once == 1:
                            build.buffer_store(out, done[0], indices)
                            continue
                        registers = [as_register(d, self.out_dtype) for d in done]
                        if at_once == 2:
                            store_pair(out.ptr_to(indices), self.out_dtype, *registers)
                        else:
                            store_four(out.ptr_to(indices), self.out_dtype, registers)

    def _kept(self, place: Any) -> Any:
        """Four sums of the staged tile, of all parts of the depth together."""
        c = self.config
        kept = build.alloc_local([4], self.accumulator)
        pointer = self.leaving.ptr_to([place])
        if c.split == 1:
            take_four(kept, pointer, self.accumulator)
            return kept
        for e in range(4):
            build.buffer_store(kept, tirx.const(0, self.accumulator), [e])
        for rank in range(c.split):
            add_four(kept, pointer, self.accumulator, const(rank))
        return kept


def _less(bound: Any, count: int) -> Any:
    return const(bound - count) if isinstance(bound, int) else bound - count


def _tiles(extent: Any, tile: int) -> Any:
    if isinstance(extent, int):
        return ceil_div(extent, tile)
    return quotient(extent + (tile - 1), tile)


def _raster(number: Any, down: Any, across: Any, group: int) -> tuple[Any, Any]:
    """Tile of a number: groups of ``group`` rows of tiles, in each column by column."""
    if isinstance(down, int):
        group = min(group, down)
    if group <= 1:
        return quotient(number, across), remainder(number, across)
    span = across * group
    first, inner = quotient(number, span) * group, remainder(number, span)
    rows: Any = group
    if not isinstance(down, int) or down % group:
        rows = T.min(T.int32(group), down - first)
    return first + remainder(inner, rows), quotient(inner, rows)
