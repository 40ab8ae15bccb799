"""Tiled transpose: vector loads, register shuffles, vector stores.

One axis is contiguous in the source, another in the destination. A tile of both is loaded as
vectors of whole cache lines and stored row by row in unrolled code; LLVM emits register shuffles.
Each cache line of either buffer is touched by one or two tiles, not once per element.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts
from tvmopt.kernels.cpu.common.stage import collapse_axes, divisors, parallelize
from tvmopt.kernels.cpu.hint import CpuHint

# Maximum elements of a tile: LLVM takes 0.1 s to compile twice as many.
_TILE = 128
# Vector length in elements: maximum (a cache line of float32), and minimum.
_MOST_LANES, _FEWEST_LANES = 16, 8
# Rows of a tile: a full register; maximum and minimum of a divisor of other extents.
_ROWS, _MOST_ROWS, _FEWEST_ROWS = 8, 16, 5
# Minimum extents of the source and target axes; for shorter ones LLVM shuffles the plain loop.
_SHORT_SOURCE, _SHORT_TARGET = 5, 8
# Largest extent without divisors that becomes one tile.
_LONGEST_VECTOR = 32
# Addresses at this distance in bytes map to the same L1 cache set (8 to 12 ways).
_ALIASED = 4096


@dataclasses.dataclass(frozen=True)
class TransposeTile:
    """A transpose tile.

    Attributes:
        lanes: Elements along the source axis, contiguous in the loads; it is vectorised.
        rows: Elements along the target axis, contiguous in the store; it is unrolled.
    """

    lanes: int
    rows: int


def schedule_transpose(sch: s_tir.Schedule, block: SBlockRV, hint: CpuHint, cut: bool) -> bool:
    """Schedule a root-level block as a tiled transpose, if it is a transpose.

    Before -> after, for ``B[y, x, c] = A[c, y, x]`` of 64 x 56 x 56 on 16 lanes::

        for y, x, c: B[y, x, c] = A[c, y, x]

        for yxo, co in T.parallel(...):
            for ci in T.unroll(8): for yxi in T.vectorized(16): B[...] = A[...]

    Args:
        sch: The schedule.
        block: A block without reduction.
        hint: Supplies the CPU; nothing is done with ``hint.vector_registers`` below 2.
        cut: Whether the block may be split into up to four, for extents that the tile does not
            divide.

    Returns:
        Whether the block was scheduled.
    """
    if hint.vector_registers < 2 or transposed_axes(block_facts(sch, block)) is None:
        return False
    _collapse(sch, block)
    facts = block_facts(sch, block)
    axes = transposed_axes(facts)
    if axes is None:
        return False
    source, target = axes
    along, across = facts.axes[source].extent, facts.axes[target].extent
    most = most_lanes(facts.write, source, hint.arch.lanes(facts.dtype))
    tile = choose_tile(along, across, most, cut)
    if tile is None:
        return False
    loops = sch.get_loops(block)
    around = [loop for i, loop in enumerate(loops) if i not in axes]
    sch.reorder(loops[source], loops[target], *around)
    for part in _cut_into_tiles(sch, block, len(around), tile):
        target_loop, source_loop, *around = sch.get_loops(part)
        work = math.prod(int(sch.get(loop).extent) for loop in sch.get_loops(part))
        outer = [*around, *_tile_loops(sch, around, source_loop, target_loop, tile)]
        if outer:
            parallelize(sch, outer, hint, work)
    return True


def tile_innermost(sch: s_tir.Schedule, block: SBlockRV, tile: TransposeTile) -> None:
    """Tile the two innermost loops of ``block``, source axis first; outer loops stay unchanged."""
    for part in _cut_into_tiles(sch, block, 0, tile):
        target, source = sch.get_loops(part)[-2:]
        _tile_loops(sch, [], source, target, tile)


def transposed_axes(facts: BlockFacts) -> tuple[int, int] | None:
    """Return the (source, target) axes, contiguous in the loads and in the store; or None."""
    if facts.divides or facts.stores != 1 or any(facts.conditional) or facts.reduction:
        return None
    wide = [i for i, axis in enumerate(facts.axes) if axis.extent > 1]
    targets = [i for i in wide if facts.write.strides[i] == 1]
    if len(targets) != 1 or any(None in read.strides for read in facts.reads):
        return None
    [target] = targets
    if all(read.strides[target] in (0, 1) for read in facts.reads):
        return None  # already vectorisable: every load is contiguous or broadcast along the target
    sources = {i for i in wide for read in facts.reads if i != target and read.strides[i] == 1}
    if len(sources) != 1:
        return None
    [source] = sources
    if not all(read.strides[source] in (0, 1) for read in facts.reads):
        return None  # an operand has the layout of the result
    return source, target


def most_lanes(write: Access, source: int, lanes: int) -> int:
    """Return the maximum vector length along the axis ``source``, in elements.

    Each element goes to a separate cache line of the result. If these lines are a multiple of
    ``_ALIASED`` bytes apart, they map to one cache set, which holds only a few.
    """
    step = (write.strides[source] or 0) * write.buffer.dtype.itemsize
    return _FEWEST_LANES if step % _ALIASED == 0 else min(_MOST_LANES, max(_FEWEST_LANES, lanes))


def choose_tile(along: int, across: int, most: int, cut: bool) -> TransposeTile | None:
    """Return the transpose tile; None when the plain loop is as good.

    Args:
        along: Extent of the source axis.
        across: Extent of the target axis.
        most: Maximum elements along the source axis.
        cut: Whether the loops may be partitioned into whole tiles and a remainder.
    """
    if along < _SHORT_SOURCE or across < _SHORT_TARGET:
        return None
    rows = _rows(across, cut)
    if rows is None:
        return None
    most = min(most, _TILE // rows, along)
    fit = divisors(along, most)[-1]
    if 2 * fit > most:
        return TransposeTile(fit, rows)
    if cut:
        return TransposeTile(most, rows)
    if fit >= _SHORT_SOURCE:
        return TransposeTile(fit, rows)
    return TransposeTile(along, rows) if along <= _LONGEST_VECTOR else None


def _rows(extent: int, cut: bool) -> int | None:
    if extent % _ROWS == 0:
        return _ROWS
    fit = [d for d in divisors(extent, _MOST_ROWS) if d >= _FEWEST_ROWS]
    if fit:
        return fit[-1]
    if extent % 4 == 0:
        return 4
    if extent <= _LONGEST_VECTOR:
        return extent  # a remainder would touch every cache line again
    return _ROWS if cut else None


def _collapse(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Collapse adjacent axes that are contiguous in every access.

    TVM then simplifies the indices, and loses the carry of a division of a remainder:
    ``(x % 32 + 2) // 4`` becomes ``(x + 2) % 32 // 4``. Blocks with such an index stay as they are.
    """
    if _divides_remainders(sch.get(block)):
        return
    while True:
        facts = block_facts(sch, block)
        accesses = (facts.write, *facts.reads)
        for i in range(len(facts.axes) - 1, 0, -1):
            if all(_walks_on(access, facts, i) for access in accesses):
                collapse_axes(sch, block, (i - 1, i))
                break
        else:
            return


def _divides_remainders(block: s_tir.SBlock) -> bool:
    divisions: list[tirx.FloorDiv | tirx.FloorMod] = []
    remainders: list[tirx.FloorMod] = []
    kinds = (tirx.FloorDiv, tirx.FloorMod)
    tvm_ffi.structural_walk(block.body, [(kind, divisions.append) for kind in kinds])
    for division in divisions:
        tvm_ffi.structural_walk(division.a, (tirx.FloorMod, remainders.append))
    return bool(remainders)


def _walks_on(access: Access, facts: BlockFacts, axis: int) -> bool:
    outer, inner = facts.axes[axis - 1].extent, facts.axes[axis].extent
    if outer == 1 or inner == 1:
        return True
    step = access.strides[axis]
    return step is not None and access.strides[axis - 1] == step * inner


def _cut_into_tiles(
    sch: s_tir.Schedule, block: SBlockRV, behind: int, tile: TransposeTile
) -> list[SBlockRV]:
    """Partition the source and target loops into multiples of the tile, and remainders.

    Args:
        sch: The schedule.
        block: The block; the two loops are adjacent, source first.
        behind: Number of loops inside these two.
        tile: The tile.

    Returns:
        One block per part, the loops now target first. After a partition, references to its outer
        loops are invalid.
    """
    parts: list[SBlockRV] = []
    for strip in _cut(sch, block, behind + 2, tile.lanes):
        source, target = sch.get_loops(strip)[-behind - 2 :][:2]
        sch.reorder(target, source)
        parts += _cut(sch, strip, behind + 2, tile.rows)
    return parts


def _cut(sch: s_tir.Schedule, block: SBlockRV, place: int, length: int) -> list[SBlockRV]:
    """Partition the ``place``-th innermost loop into a multiple of ``length`` and a remainder."""
    loop = sch.get_loops(block)[-place]
    extent = int(sch.get(loop).extent)
    whole = extent - extent % length
    if whole in (0, extent):
        return [block]
    return [sch.get_child_blocks(part)[0] for part in sch.loop_partition(loop, [whole])]


def _tile_loops(
    sch: s_tir.Schedule,
    around: Sequence[LoopRV],
    source: LoopRV,
    target: LoopRV,
    tile: TransposeTile,
) -> list[LoopRV]:
    """Tile the loops of the two axes, inside the loops ``around``.

    Returns:
        The tile loops, target axis innermost, so that consecutive tiles complete the cache lines of
        the result.
    """
    lane_tiles, lane = _tile_loop(sch, source, tile.lanes)
    row_tiles, row = _tile_loop(sch, target, tile.rows)
    sch.reorder(*around, *lane_tiles, *row_tiles, row, lane)
    if int(sch.get(row).extent) > 1:
        sch.unroll(row)
    if int(sch.get(lane).extent) > 1:
        sch.vectorize(lane)
    return [*lane_tiles, *row_tiles]


def _tile_loop(sch: s_tir.Schedule, loop: LoopRV, length: int) -> tuple[list[LoopRV], LoopRV]:
    """Split a loop into tiles; a remainder loop, whose minimum is not 0, stays one loop."""
    extent = int(sch.get(loop).extent)
    if int(sch.get(loop).min) != 0 or extent <= length:
        return [], loop
    tiles, inner = sch.split(loop, [extent // length, length])
    return [tiles], inner
