"""Transposes: tiles that are loaded as vectors and stored through shuffles.

An axis runs along memory where it is read, another one where it is written. A tile of both is
loaded as vectors of whole cache lines; its elements are stored row by row in straight-line code,
which LLVM turns into shuffles of registers. Each line of either buffer is then touched by one tile
and its neighbour, and not once for each of its elements.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts
from tvmopt.kernels.cpu.common.stage import collapse_axes, divisors, parallelize
from tvmopt.kernels.cpu.hint import CpuHint

# Elements of a tile, at most: LLVM takes 0.1 s for twice as many.
_TILE = 128
# Along the vector; four registers of the narrowest CPU, a cache line of float32.
_MOST_LANES, _FEWEST_LANES = 16, 8
# Rows of a tile: full registers, or what divides an odd extent.
_ROWS, _MOST_ROWS, _FEWEST_ROWS = 8, 16, 5
# Shorter axes: LLVM finds shuffles for the plain loop.
_SHORT_SOURCE, _SHORT_TARGET = 5, 8
# Extents without divisors that make one tile.
_LONGEST_VECTOR = 32
# Addresses this many bytes apart fall into the same set of an L1 cache, 8 to 12 lines.
_ALIASED = 4096


@dataclasses.dataclass(frozen=True)
class TransposeTile:
    """A tile of a transpose.

    Attributes:
        lanes: Elements along the axis that is contiguous where it is read; the vectorised one.
        rows: Elements along the axis that is contiguous where it is written.
    """

    lanes: int
    rows: int


def schedule_transpose(sch: s_tir.Schedule, block: SBlockRV, hint: CpuHint, cut: bool) -> bool:
    """Schedule a root-level block as tiles when it transposes; whether it does.

    Before -> after, for ``B[y, x, c] = A[c, y, x]`` of 64 x 56 x 56 on 16 lanes::

        for y, x, c: B[y, x, c] = A[c, y, x]

        for yxo, co in T.parallel(...):
            for ci in T.unroll(8): for yxi in T.vectorized(16): B[...] = A[...]

    Args:
        sch: The schedule.
        block: A block without reduction.
        hint: Gives the CPU; without vectors of several registers nothing is done.
        cut: Whether the block may fall apart into up to four, where the extents are ragged.
    """
    if hint.vectors < 2 or transposed_axes(block_facts(sch, block)) is None:
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
    """Tile the two innermost loops of ``block``: along where it is read, along where it writes.

    The loops around them stay as they are.
    """
    for part in _cut_into_tiles(sch, block, 0, tile):
        target, source = sch.get_loops(part)[-2:]
        _tile_loops(sch, [], source, target, tile)


def transposed_axes(facts: BlockFacts) -> tuple[int, int] | None:
    """The axes along memory where ``facts`` reads and where it writes, when these differ."""
    if facts.divides or facts.stores != 1 or any(facts.conditional) or facts.reduction:
        return None
    wide = [i for i, axis in enumerate(facts.axes) if axis.extent > 1]
    targets = [i for i in wide if facts.write.strides[i] == 1]
    if len(targets) != 1 or any(None in read.strides for read in facts.reads):
        return None
    [target] = targets
    if all(read.strides[target] in (0, 1) for read in facts.reads):
        return None  # vectors as it is; at most a column is broadcast along them
    sources = {i for i in wide for read in facts.reads if i != target and read.strides[i] == 1}
    if len(sources) != 1:
        return None
    [source] = sources
    if not all(read.strides[source] in (0, 1) for read in facts.reads):
        return None  # an operand in the layout of the result
    return source, target


def most_lanes(write: Access, source: int, lanes: int) -> int:
    """How many elements along the axis ``source`` to load as one vector, at most.

    Each goes to a line of its own until that is complete; a cache keeps few lines that lie a
    multiple of its stride apart.
    """
    step = (write.strides[source] or 0) * write.buffer.dtype.itemsize
    return _FEWEST_LANES if step % _ALIASED == 0 else min(_MOST_LANES, max(_FEWEST_LANES, lanes))


def choose_tile(along: int, across: int, most: int, cut: bool) -> TransposeTile | None:
    """The tile for a transpose; None when the plain loop is as good.

    Args:
        along: Extent of the axis that is contiguous where it is read.
        across: Extent of the one that is contiguous where it is written.
        most: Elements along the former, at most.
        cut: Whether ragged extents may be cut into whole tiles and a rest.
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
        return extent  # a rest would touch every line again
    return _ROWS if cut else None


def _collapse(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Make adjacent axes one wherever every access walks them as one."""
    while True:
        facts = block_facts(sch, block)
        accesses = (facts.write, *facts.reads)
        for i in range(len(facts.axes) - 1, 0, -1):
            if all(_walks_on(access, facts, i) for access in accesses):
                collapse_axes(sch, block, (i - 1, i))
                break
        else:
            return


def _walks_on(access: Access, facts: BlockFacts, axis: int) -> bool:
    outer, inner = facts.axes[axis - 1].extent, facts.axes[axis].extent
    if outer == 1 or inner == 1:
        return True
    step = access.strides[axis]
    return step is not None and access.strides[axis - 1] == step * inner


def _cut_into_tiles(
    sch: s_tir.Schedule, block: SBlockRV, behind: int, tile: TransposeTile
) -> list[SBlockRV]:
    """Cut the loops of source and target into multiples of the tile and the rests.

    Args:
        sch: The schedule.
        block: The block; the loops are adjacent, source first.
        behind: How many loops are within these two.
        tile: The tile.

    Returns:
        A block for each part, the loops now target first. Those around a cut are out of reach.
    """
    parts: list[SBlockRV] = []
    for strip in _cut(sch, block, behind + 2, tile.lanes):
        source, target = sch.get_loops(strip)[-behind - 2 :][:2]
        sch.reorder(target, source)
        parts += _cut(sch, strip, behind + 2, tile.rows)
    return parts


def _cut(sch: s_tir.Schedule, block: SBlockRV, place: int, length: int) -> list[SBlockRV]:
    """Cut the ``place``-th loop from within into a multiple of ``length`` and a shorter rest."""
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
    """Tile the loops of the two axes, within the loops ``around``.

    Returns:
        The loops over the tiles, those along the result inside: they complete its lines.
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
    """Split a loop into tiles; a rest, which starts where the whole tiles end, stays one."""
    extent = int(sch.get(loop).extent)
    if int(sch.get(loop).min) != 0 or extent <= length:
        return [], loop
    tiles, inner = sch.split(loop, [extent // length, length])
    return [tiles], inner
