"""Loader of a GEMM: TMA loads of tiles of two matrices, multicast in a cluster."""

from __future__ import annotations

import dataclasses
import itertools

from tvm import tirx
from tvm.ir import Expr
from tvm.tirx.script.builder import ir as build

from tvmopt.kernels.cuda.hopper.config import HopperConfig
from tvmopt.kernels.cuda.hopper.emit import const, quotient
from tvmopt.kernels.cuda.hopper.loader import Loader
from tvmopt.kernels.cuda.hopper.packing import pitch_of
from tvmopt.kernels.cuda.hopper.pipeline import Pipeline
from tvmopt.kernels.cuda.hopper.problem import BYTES, K_BLOCK_BYTES, GemmProblem, ceil_div
from tvmopt.kernels.cuda.hopper.smem_layout import layout_of
from tvmopt.kernels.cuda.hopper.tile_scheduler import Tile
from tvmopt.kernels.cuda.hopper.tma import tensor_map, tma_load

# Most rows of a TMA box; rows after which the 128-byte swizzle pattern repeats.
_BOX_ROWS, _PATTERN = 256, 8


@dataclasses.dataclass(frozen=True)
class TmaLoad:
    """Load of one part of an operand's tile into a stage.

    Attributes:
        ring: The operand's stages in shared memory.
        slot: Index of the stage.
        barrier: Full barrier of the stage.
        k_block: K block.
        batch: Batch index.
        start: First row of the tile.
        part: Multicast part that this thread block loads.
        mask: Multicast mask: one bit for each receiving thread block; 0 without multicast.
        share: Which of the parts of a stage, in the sense of :mod:`.split_float32`.
    """

    ring: tirx.Buffer
    slot: Expr
    barrier: Expr
    k_block: Expr
    batch: Expr
    start: Expr
    part: Expr | int
    mask: Expr | int
    share: int = 0


class TmaOperand:
    """A matrix of which TMA loads (rows x K) tiles into a pipeline stage.

    Layout of a tile in shared memory, 128-byte swizzled::

        K-major:  row 0: 128 bytes of K        MN-major:  block 0: k = 0: 64 rows, 128 bytes
                  row 1: 128 bytes of K                            k = 1: 64 rows, 128 bytes
                  ...                                     block 1: rows 64 .. 127, ...

    With TMA multicast, each thread block loads one part of the shared tile: some of its rows
    (K-major), or some of the k lines of each block (MN-major).

    TMA is slow at filling with zeros. So the last tile loads no rows out of bounds (K-major, with
    a separate descriptor), or no blocks out of bounds. wgmma then computes garbage in these
    rows, which the epilogue does not store.
    """

    def __init__(
        self, buffer: tirx.Buffer | Expr, dtype: str, rows: Expr | int, depth: int, k_major: bool,
        batch: int, tile: int, parts: int = 1, loaded: int = 0,
    ) -> None:  # fmt: skip
        self.k_major = k_major
        self.batch = batch
        self.tile = tile
        #: Rows of a tile that are loaded; of an MN-major operand, whole blocks of 64.
        self.loaded = loaded or tile
        self.parts = parts
        self.step = K_BLOCK_BYTES // BYTES[dtype]
        self.rows = rows
        size = BYTES[dtype]
        across, along = (depth, rows) if k_major else (rows, depth)
        pitch = pitch_of(across, dtype) if isinstance(across, int) else across
        shape = [across, along]
        strides = [pitch * size]
        if batch > 1:
            shape.append(batch)
            strides.append(pitch * along * size)

        def box_of(rows: int) -> Expr:
            box = [self.step, rows] if k_major else [64, self.step // parts]
            return tensor_map(buffer, dtype, shape, strides, box + [1] * (batch > 1))

        self.boxes = ceil_div(ceil_div(tile, parts), _BOX_ROWS) if k_major else self.loaded // 64
        #: Rows of the last tile that are loaded; 0 where the last tile is full.
        self.rest = 0
        if isinstance(rows, int) and rows % tile and not (self.boxes > 1 and k_major):
            # Parts begin where the swizzle pattern does, every 8 rows.
            unit = (_PATTERN if parts > 1 else 1) if k_major else 64
            rest = ceil_div(rows % tile, unit) * unit
            self.rest = rest if rest < self.loaded else 0
        heights = {h for extent in (self.loaded, self.rest) for h in self._heights(extent) if h}
        #: Descriptors by box height; one (key 0) for MN-major, whose parts cover all rows.
        self._by_height = {h: box_of(h) for h in sorted(heights)} if k_major else {0: box_of(0)}
        self.maps = list(self._by_height.values())

    def _heights(self, rows: int) -> list[int]:
        """Return the box height of each multicast part of ``rows`` rows."""
        if self.parts == 1:
            return [rows // self.boxes]
        pieces = rows // _PATTERN
        ends = [_PATTERN * (part * pieces // self.parts) for part in range(self.parts + 1)]
        return [(end - first) // self.boxes for first, end in itertools.pairwise(ends)]

    def missing(self, start: Expr) -> Expr | int:
        """Return the bytes that the tile at row ``start`` does not load (rows out of bounds)."""
        if not self.rest:
            return 0
        spare = (self.loaded - self.rest) * K_BLOCK_BYTES
        return tirx.Select(self._is_whole(start), const(0), const(spare))

    def _is_whole(self, start: Expr) -> Expr:
        return start + self.tile <= self.rows

    def load(self, load: TmaLoad) -> None:
        """Issue the TMA loads of one part of a tile."""
        emit = self._load_rows if self.k_major else self._load_blocks
        if not self.rest:
            emit(self.loaded, load)
            return
        with build.If(self._is_whole(load.start)):
            with build.Then():
                emit(self.loaded, load)
            with build.Else():
                emit(self.rest, load)

    def _load_rows(self, rows: int, load: TmaLoad) -> None:
        """Issue the TMA loads of ``rows`` rows of a K-major operand."""
        heights = self._heights(rows)
        first = load.part * (rows // self.parts)
        if min(heights) < max(heights):
            first = build.Bind(quotient(load.part * (rows // _PATTERN), self.parts) * _PATTERN)

        def boxes(height: int) -> None:
            for i in range(self.boxes):
                row = first + i * height
                place = [load.k_block * self.step, load.start + row, *self._batch_of(load)]
                where = load.ring.ptr_to([load.slot, (load.share * self.loaded + row) * self.step])
                tma_load(where, self._by_height[height], place, load.barrier, load.mask)

        low, high = min(heights), max(heights)
        if low == high:
            boxes(low)
            return
        longer = tirx.any(*(load.part == n for n, h in enumerate(heights) if h == high))
        with build.If(longer):
            with build.Then():
                boxes(high)
            if low:
                with build.Else():
                    boxes(low)

    def _load_blocks(self, rows: int, load: TmaLoad) -> None:
        """Issue the TMA loads of ``rows`` rows of an MN-major operand, 64 at a time."""
        lines = self.step // self.parts
        for i in range(rows // 64):
            line = load.k_block * self.step + load.part * lines
            place = [load.start + i * 64, line, *self._batch_of(load)]
            where = load.ring.ptr_to([load.slot, i * 64 * self.step + load.part * lines * 64])
            tma_load(where, self._by_height[0], place, load.barrier, load.mask)

    def _batch_of(self, load: TmaLoad) -> list[Expr]:
        return [load.batch] if self.batch > 1 else []


class GemmLoader(Loader):
    """Loads A and B; with a cluster, its thread blocks multicast parts of them to each other."""

    def __init__(
        self, problem: GemmProblem, config: HopperConfig, left: TmaOperand, right: TmaOperand
    ) -> None:
        self._config, self._left, self._right = config, left, right
        self.dtype = problem.dtype
        self.k_blocks, self.group, self._parts = problem.k_blocks, problem.group, problem.parts
        self.k_steps = ceil_div(min(problem.k * BYTES[problem.dtype], K_BLOCK_BYTES), 32)
        self.left_layout = layout_of(left.k_major, config.tile_k)
        self.right_layout = layout_of(right.k_major, config.tile_k)
        self.maps = [*left.maps, *right.maps]

    def stage_bytes(self, tile: Tile) -> Expr | int:
        """Return the transaction bytes of one stage; fewer in a ragged last tile."""
        missing = self._left.missing(tile.row) + self._right.missing(tile.column)
        return self._config.stage_bytes - self._parts * missing

    def load(self, pipeline: Pipeline, slot: Expr, k_block: Expr, tile: Tile) -> None:
        """Issue the TMA loads of one K block into stage ``slot``."""
        barrier, cast = pipeline.full.pointer(slot), pipeline.multicast
        for part in range(self._parts):
            block = k_block * self._parts + part
            own = (slot, barrier, block, tile.operand_batch)
            self._left.load(
                TmaLoad(pipeline.left, *own, tile.row, cast.cta_n, cast.left_mask, part)
            )
            self._right.load(
                TmaLoad(pipeline.right, *own, tile.column, cast.cta_m, cast.right_mask, part)
            )
