"""Matrix products on Hopper: copy engine, ring in shared memory, warpgroup instructions.

One warpgroup of each thread block has a single thread that fills the stages of a ring by the copy
engine (TMA); the others multiply from it (wgmma) and store. A stage is 128 bytes of depth: one atom
of the 128-byte swizzle. What lies out of range is read as zero and not stored.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from tvm import tirx
from tvm.script import tirx as T  # noqa: N812
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as build

from tvmopt.errors import ConfigError

from .adding import add_up
from .config import DEPTH_BYTES, Config
from .copies import Copies, pitch_of
from .emit import const, quotient, remainder, tensor_map, tma_load
from .epilogue import Epilogue, identity
from .mainloop import Kernel
from .parameters import Parameters, declare, mark, plain_signature
from .problem import BYTES, GemmProblem, Signature, ceil_div


# Rows of a box of the copy engine at most, and after how many the swizzle's pattern repeats.
_BOX_ROWS, _PATTERN = 256, 8


class _Operand:
    """A matrix that tiles of rows (or columns) by depth are loaded from.

    In shared memory rows that are contiguous along the depth lie under each other, 128 bytes each;
    others lie as blocks of 64 rows, each with one line of 128 bytes for every step of the depth.
    Thread blocks that share a tile each load a part: of its rows, or of the lines of each block.

    The copy engine is slow where it only writes zeros. So the last tile loads no rows that there
    are not (of ``major``, by a map of its own), or no such blocks; what the tensor cores make of
    the rest is not stored.
    """

    def __init__(
        self, buffer: Any, dtype: str, rows: Any, depth: int, major: bool, batch: int, tile: int,
        parts: int = 1,
    ) -> None:  # fmt: skip
        self.major = major
        self.batch = batch
        self.tile = tile
        self.parts = parts
        self.step = DEPTH_BYTES // BYTES[dtype]
        self.rows = rows
        size = BYTES[dtype]
        across, along = (depth, rows) if major else (rows, depth)
        pitch = pitch_of(across, dtype) if isinstance(across, int) else across
        shape = [across, along]
        strides = [pitch * size]
        if batch > 1:
            shape.append(batch)
            strides.append(pitch * along * size)

        def box_of(rows: int) -> Any:
            box = [self.step, rows] if major else [64, self.step // parts]
            return tensor_map(buffer, dtype, shape, strides, box + [1] * (batch > 1))

        self.boxes = ceil_div(ceil_div(tile, parts), _BOX_ROWS) if major else tile // 64
        #: Rows of the last tile that are loaded; 0 where it is as the others.
        self.rest = 0
        if isinstance(rows, int) and rows % tile and not (self.boxes > 1 and major):
            # Parts begin where the swizzle's pattern does, every 8 rows.
            unit = (_PATTERN if parts > 1 else 1) if major else 64
            rest = ceil_div(rows % tile, unit) * unit
            self.rest = rest if rest < tile else 0
        heights = {h for extent in (tile, self.rest) for h in self._heights(extent) if h}
        #: By the rows that it loads; alike where a part has lines of all of them.
        self._by_height = {h: box_of(h) for h in sorted(heights)} if major else {0: box_of(0)}
        self.maps = list(self._by_height.values())

    def _heights(self, rows: int) -> list[int]:
        """Rows of a box of each part of ``rows``."""
        if self.parts == 1:
            return [rows // self.boxes]
        pieces = rows // _PATTERN
        ends = [_PATTERN * (part * pieces // self.parts) for part in range(self.parts + 1)]
        return [(end - first) // self.boxes for first, end in itertools.pairwise(ends)]

    def missing(self, start: Any) -> Any:
        """Bytes of the tile from ``start`` on that are not loaded, because there are no rows."""
        if not self.rest:
            return 0
        spare = (self.tile - self.rest) * DEPTH_BYTES
        return tirx.Select(self._is_whole(start), const(0), const(spare))

    def _is_whole(self, start: Any) -> Any:
        return start + self.tile <= self.rows

    def load(
        self, stage: Any, slot: Any, bar: Any, start: Any, step: Any, batch: Any,
        part: Any = 0, mask: Any = 0,
    ) -> None:  # fmt: skip
        """Load a part of the tile that begins at row ``start``."""

        def rows(extent: int) -> None:
            load = self._load_rows if self.major else self._load_blocks
            load(extent, stage, slot, bar, start, step, batch, part, mask)

        if not self.rest:
            rows(self.tile)
            return
        with build.If(self._is_whole(start)):
            with build.Then():
                rows(self.tile)
            with build.Else():
                rows(self.rest)

    def _load_rows(
        self, rows: int, stage: Any, slot: Any, bar: Any, start: Any, step: Any, batch: Any,
        part: Any, mask: Any,
    ) -> None:  # fmt: skip
        heights = self._heights(rows)
        first: Any = part * (rows // self.parts)
        if min(heights) < max(heights):
            first = build.Bind(quotient(part * (rows // _PATTERN), self.parts) * _PATTERN)

        def load(height: int) -> None:
            for i in range(self.boxes):
                row = first + i * height
                place = [step * self.step, start + row, *([batch] if self.batch > 1 else [])]
                where = stage.ptr_to([slot, row * self.step])
                tma_load(where, self._by_height[height], place, bar, mask)

        low, high = min(heights), max(heights)
        if low == high:
            load(low)
            return
        longer = tirx.any(*(part == number for number, h in enumerate(heights) if h == high))
        with build.If(longer):
            with build.Then():
                load(high)
            if low:
                with build.Else():
                    load(low)

    def _load_blocks(
        self, rows: int, stage: Any, slot: Any, bar: Any, start: Any, step: Any, batch: Any,
        part: Any, mask: Any,
    ) -> None:  # fmt: skip
        lines = self.step // self.parts
        for i in range(rows // 64):
            place = [start + i * 64, step * self.step + part * lines]
            where = stage.ptr_to([slot, i * 64 * self.step + part * lines * 64])
            tma_load(where, self._by_height[0], place + [batch] * (self.batch > 1), bar, mask)


def gemm(
    problem: GemmProblem,
    config: Config,
    name: str | None = "main",
    signature: Signature | None = None,
) -> tirx.PrimFunc:
    """The kernel: a function of A, B, the epilogue's inputs, and C.

    Args:
        problem: What to compute.
        config: How.
        name: The function's global symbol; None for a private one.
        signature: The function's parameters, where they are others than those.

    Returns:
        A TIRx function (``tir_pipeline="tirx"``) of A of shape ``([batch,] m, k)``, B of
        ``([batch,] k, n)``, the last two axes of either exchanged where it is stored transposed,
        and C of ``([batch,] m, n)``.

    Raises:
        ConfigError: When ``config`` does not fit.
    """
    if reason := config.why_not(problem):
        raise ConfigError(f"the configuration does not fit the product: {reason}")
    with IRBuilder() as builder, build.prim_func(is_private=name is None):
        build.func_name(name or "main")
        _body(problem, config, name, signature or gemm_signature(problem))
    return builder.get()


def gemm_signature(problem: GemmProblem) -> Signature:
    """A, B, the epilogue's inputs, C."""
    p = problem
    rows = tirx.Var("m", "int64") if p.dynamic else p.m
    batched = (p.batch,) if p.batch > 1 else ()
    a_shape = (p.k, rows) if p.trans_a else (rows, p.k)
    b_shape = (p.n, p.k) if p.trans_b else (p.k, p.n)
    return plain_signature(
        ((batched if p.batch_a else ()) + a_shape, p.dtype),
        ((batched if p.batch_b else ()) + b_shape, p.dtype),
        ((*batched, rows, p.n), p.out),
        p.ending(),
        rows if p.dynamic else None,
    )


def _body(p: GemmProblem, c: Config, name: str | None, signature: Signature) -> None:
    mark(name, "hopper_gemm")
    parameters = declare(signature)
    rows = signature.rows if p.dynamic else p.m
    batch_a, batch_b = (p.batch if p.batch_a else 1), (p.batch if p.batch_b else 1)
    a, b = _copy(p, parameters, (batch_a, batch_b))
    first = (a, p.dtype, rows, p.k, p.major[0], batch_a)
    second = (b, p.dtype, p.n, p.k, p.major[1], batch_b)
    left = _Operand(*(second if c.swap else first), c.rows, c.beside)
    right = _Operand(*(first if c.swap else second), c.columns, c.cluster)
    if not c.apart:
        GemmKernel(p, c, left, right, parameters, p.ending(), rows).emit()
        return
    shape = (*((p.batch,) if p.batch > 1 else ()), p.m, p.n)
    partial = build.alloc_buffer((c.split, *shape), p.accumulator, scope="global")
    target = dataclasses.replace(parameters, out=partial, inputs=[])
    sums = identity(p.accumulator, p.accumulator)
    GemmKernel(p, c, left, right, target, sums, rows).emit()
    add_up(partial, c.split, shape, p.accumulator, p.out, p.ending(), parameters)


def _copy(p: GemmProblem, parameters: Parameters, batches: tuple[int, int]) -> list[Any]:
    """Emit the copies; what A and B are loaded from."""
    copies = Copies(p.dtype)
    buffers = (parameters.a, parameters.b)
    parts: list[int | None] = []
    for buffer, (rows, width), batch, copied, turned in zip(
        buffers, p.stored, batches, p.copied, p.turned, strict=True
    ):
        if turned:
            parts.append(copies.turned(buffer, batch, rows, width))
        else:
            parts.append(copies.rows(buffer, rows * batch, width) if copied else None)
    copies.emit()
    return [
        buffer if part is None else copies.pointer(part)
        for buffer, part in zip(buffers, parts, strict=True)
    ]


class GemmKernel(Kernel):
    """The main loop over tiles of a product of matrices.

    With a depth that is divided apart, each part is a matrix of its own, one after the other.
    """

    def __init__(
        self, problem: GemmProblem, config: Config, left: _Operand, right: _Operand,
        parameters: Parameters, ending: Epilogue, rows: Any,
    ) -> None:  # fmt: skip
        p = problem
        steps = ceil_div(p.k * BYTES[p.dtype], DEPTH_BYTES)
        out = p.accumulator if config.apart else p.out
        super().__init__(config, p.dtype, out, steps, ending, parameters)
        self.problem = p
        if steps == 1:
            self.instructions = ceil_div(p.k * BYTES[p.dtype], 32)
        self.left, self.right = left, right
        self.rows = rows
        self.maps = [*left.maps, *right.maps]
        self.left_major, self.right_major = left.major, right.major
        self.parts = config.split if config.apart else 1
        self.batch = p.batch * self.parts
        self.out_shape = (*((self.batch,) if self.batch > 1 else ()), rows, p.n)
        if not config.staged:
            self.out_map = self._map_of(parameters.out, out)
            self.maps += [self.out_map, *self._load_residual_ahead(self._map_of)]

    def _map_of(self, buffer: Any, dtype: str) -> Any:
        """The map of a tensor of the output's shape."""
        size = BYTES[dtype]
        shape, strides = [self.problem.n, self.rows], [self.problem.n * size]
        box = [128 // size, self.config.chunk_rows]
        if self.batch > 1:
            shape.append(self.batch)
            strides.append(self.problem.m * self.problem.n * size)
            box.append(1)
        return tensor_map(buffer, dtype, shape, strides, box, promotion=0)

    def extents(self) -> tuple[Any, Any]:
        """Rows and columns of the whole, as tiles count them; int32."""
        m = T.cast(self.rows, "int32") if self.problem.dynamic else self.problem.m
        return (self.problem.n, m) if self.config.swap else (m, self.problem.n)

    def part(self, tile: Any) -> Any:
        """Which part of a divided depth this thread block multiplies."""
        return quotient(tile.batch, self.problem.batch) if self.parts > 1 else self.rank

    def stage_bytes(self, tile: Any) -> Any:
        """Bytes that arrive in a stage."""
        missing = self.left.missing(tile.row) + self.right.missing(tile.column)
        return self.config.stage_bytes - missing

    def load(self, slot: Any, step: Any, tile: Any, rank: Any) -> None:
        """Fill one stage."""
        c = self.config
        bar = self.full.pointer(slot)
        batch = remainder(tile.batch, self.problem.batch) if self.parts > 1 else tile.batch
        above, left = self.place_in_cluster()
        rows = columns = 0
        if c.beside > 1:
            rows = _shifted(sum(1 << c.cluster * i for i in range(c.beside)), above)
        if c.cluster > 1:
            columns = _shifted((1 << c.cluster) - 1, left * c.cluster if c.beside > 1 else 0)
        self.left.load(self.left_ring, slot, bar, tile.row, step, batch, left, rows)
        self.right.load(self.right_ring, slot, bar, tile.column, step, batch, above, columns)

    def place(self, tile: Any, row: Any, column: Any) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Where a row and a column of C are, and the conditions under which they exist.

        Returns:
            The indices of the output, and for each the extent that it may reach, or None.
        """
        c = self.config
        left, right = self.extents()
        ragged_left = left if not isinstance(left, int) or left % (c.rows * c.cluster) else None
        ragged_right = right if not isinstance(right, int) or right % (c.columns * c.beside) else None
        bounds = (ragged_right, ragged_left) if c.swap else (ragged_left, ragged_right)
        indices = list(zip((row, column), bounds, strict=True))
        if self.batch > 1:
            indices.insert(0, (tile.batch, None))
        return [i for i, _ in indices], indices

    def corner_of(self, tile: Any, group: Any, chunk: int) -> list[Any]:
        """Where a chunk of one warpgroup begins, 128 bytes a row, as maps of the output count."""
        c = self.config
        own = tile.row + group * (64 * c.atoms)
        if c.swap:
            start = [own + chunk * 64, tile.column]
        else:
            start = [tile.column + chunk * (128 // BYTES[self.out_dtype]), own]
        if self.batch > 1:
            start.append(tile.batch)
        return start


def _shifted(mask: int, by: Any) -> Any:
    if isinstance(by, int):
        return mask << by
    return const(mask) << by
