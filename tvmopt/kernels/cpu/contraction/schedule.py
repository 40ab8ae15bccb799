"""Contractions with a heuristic register tile: convolution, matmul, pooling, column reductions.

The schedule is the GotoBLAS loop nest. A register tile of accumulators (rows x vectors) stays in
vector registers over the whole reduction. One operand is loaded as vectors; the other is loaded as
scalars and broadcast. The fused epilogue runs on the tile before the store. Operands are read in
place, unless :mod:`.packing` packs them or :func:`schedule_tile` copies a panel.
"""

from __future__ import annotations

import dataclasses
import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import BlockFacts, block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.injective import schedule_injective
from tvmopt.kernels.cpu.common.nest import find_epilogue, only_reduction, unroll_and_vectorize
from tvmopt.kernels.cpu.common.packing import is_einsum, pack_operands
from tvmopt.kernels.cpu.common.stage import (
    collapse_axes,
    collapse_map,
    contiguous_tail,
    divisors,
    parallelize,
    vector_length,
)
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.workload import Refusal

# Approximate instructions to load a vector of odd length or with a stride.
_PIECEWISE_LOAD = 6
# Reductions of at most this many steps without operand reuse (depthwise convolution, pooling) are
# unrolled; then no vector is loop-carried.
_UNROLLED = 25
# Minimum row tiles that share a panel before it is packed; and the stride in bytes above which its
# rows cause TLB misses and cache-set conflicts.
_PANEL_USES, _FAR = 4, 1024
# Independent accumulators that hide the FMA latency: 4 cycles x 2 FMAs per cycle.
_LATENCY_TILE = 8

_NO_VECTOR = Refusal("its last output axis is no contiguous vector")


@dataclasses.dataclass(frozen=True)
class VectorTile:
    """Register tile of an anchor, after its vectorised axes are collapsed.

    Attributes:
        vector: Index of the vectorised axis.
        length: Elements of one vector. At most one register in a reduction loop: LLVM scalarises
            longer loop-carried vectors of odd length.
        columns: Vectors per row of the tile.
        row: Index of the axis that reuses the loaded vectors, or None.
        rows: Elements of that axis in a tile.
        rows_inside: Whether the row-tile loop is the innermost tile loop.
    """

    vector: int
    length: int
    columns: int
    row: int | None
    rows: int
    rows_inside: bool


def emit(func: tirx.PrimFunc, hint: CpuHint, pack: bool = True) -> s_tir.Schedule | Refusal:
    """Schedule ``func``, a single reduction that can be tiled.

    Args:
        func: A TensorIR function after FuseTIR.
        hint: The configuration.
        pack: Whether operands may be packed.
    """
    found = only_reduction(func)
    if isinstance(found, Refusal):
        return found
    sch, anchor = found
    if pack:
        pack_operands(sch, anchor, hint.arch)
    if choose_tile(block_facts(sch, anchor), hint.arch) is None:
        return _NO_VECTOR
    epilogue = find_epilogue(sch, anchor)
    fused = {sch.get(anchor).name_hint, sch.get(epilogue).name_hint}
    stages = [sch.get(b).name_hint for b in leaf_blocks(sch)]
    _collapse_vector_axes(sch, anchor, epilogue)
    tile = choose_tile(block_facts(sch, anchor), hint.arch)
    if tile is None:
        return _NO_VECTOR
    schedule_tile(sch, anchor, epilogue, tile, pack, hint)
    for name in stages:
        if name not in fused:
            schedule_injective(sch, sch.get_sblock(name), hint)
    return sch


def choose_tile(facts: BlockFacts, arch: CpuArch) -> VectorTile | None:
    """Choose the vector axis, the row axis and the register tile of one anchor.

    Returns:
        The tile; None when the innermost output axis does not vectorise.
    """
    lanes = arch.lanes(facts.dtype)
    wide = [i for i in facts.spatial if facts.axes[i].extent > 1]
    if not wide or facts.write.strides[wide[-1]] != 1 or facts.conditional[wide[-1]]:
        return None
    vector = wide[-1]
    budget = arch.vector_registers * 3 // 4
    vector_reads = [r for r in facts.reads if r.strides[vector] != 0]
    # Row axes reuse the loaded vectors: output channels of a convolution, rows of a matmul.
    row_axes = [i for i in wide[:-1] if all(r.strides[i] == 0 for r in vector_reads)]
    row = max(row_axes, key=lambda i: facts.axes[i].extent, default=None)
    extent = facts.axes[vector].extent
    if row is None and facts.reduced <= _UNROLLED:
        # Strided: LLVM vectorises the scalar loop with shuffles, while TVM would gather.
        strided = any(r.strides[vector] != 1 for r in vector_reads)
        length = 1 if strided else vector_length(extent, lanes)
        return VectorTile(vector, length, 1, None, 1, False)
    length = vector_length(extent, lanes, 1)
    best, best_score = VectorTile(vector, length, 1, row, 1, False), -math.inf
    whole = length == lanes and all(r.strides[vector] == 1 for r in vector_reads)
    load = 1 if whole else _PIECEWISE_LOAD
    for columns in divisors(extent // length, budget):
        rows = 1
        if row is not None:
            rows = divisors(facts.axes[row].extent, budget // columns)[-1]
        # FMAs per instruction; too few accumulators are latency-bound.
        tile = rows * columns
        score = tile / (tile + rows + columns * load) * min(1.0, tile / _LATENCY_TILE)
        if score > best_score:
            best, best_score = VectorTile(vector, length, columns, row, rows, False), score
    if row is not None:
        best = dataclasses.replace(best, rows_inside=_rows_belong_inside(facts, best, row))
    return best


def _rows_belong_inside(facts: BlockFacts, tile: VectorTile, row: int) -> bool:
    """Return whether the row-tile loop should be the inner one of the two tile loops.

    Every step of the outer loop reads the inner loop's operand again; the other operand stays in
    cache.
    """
    others = [i for i in facts.spatial if i not in (tile.vector, row)]
    vector_steps = facts.axes[tile.vector].extent // (tile.columns * tile.length)
    row_steps = facts.axes[row].extent // tile.rows

    def size(axis: int) -> int:
        """Return the elements that one step of the other axes reads."""
        reads = [r for r in facts.reads if r.strides[axis] != 0]
        used = [
            math.prod(
                a.extent for i, a in enumerate(facts.axes) if r.strides[i] and i not in others
            )
            for r in reads
        ]
        return max(used, default=0)

    return vector_steps * size(row) <= row_steps * size(tile.vector)


def schedule_tile(
    sch: s_tir.Schedule,
    anchor: SBlockRV,
    epilogue: SBlockRV,
    tile: VectorTile,
    pack: bool,
    hint: CpuHint,
) -> None:
    """Apply the register tile to ``anchor`` and compute ``epilogue`` at the tile loop.

    With ``pack``, the operand that the row tiles share may be packed into a panel.

    Before -> after, for a tile of 6 rows x 2 vectors of 16::

        for f, p: for k: acc[f, p] += W[f, k] * X[k, p]
        for f, p: Y[f, p] = relu(acc[f, p])

        for fo_po in T.parallel(...):
            for fi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16): acc[...] = 0
            for k:
                for fi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16):
                    acc[...] += W[...] * X[...]
            for fi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16): Y[...] = ...
    """
    facts = block_facts(sch, anchor)
    loops = sch.get_loops(anchor)
    reduction = [loops[i] for i in facts.reduction]
    outer = {i: loops[i] for i in facts.spatial}
    outer[tile.vector], columns = _split(sch, loops[tile.vector], tile.columns * tile.length)
    inner = _split(sch, columns, tile.length)
    if tile.row is not None:
        outer[tile.row], rows = _split(sch, loops[tile.row], tile.rows)
        inner.insert(0, rows)
    units = [loop for i, loop in enumerate(loops) if i not in (*facts.spatial, *facts.reduction)]
    order = [i for i in facts.spatial if i not in (tile.row, tile.vector)]
    if tile.row is None:
        order += [tile.vector]
    elif tile.rows_inside:
        order += [tile.vector, tile.row]
    else:
        order += [tile.row, tile.vector]
    outer_loops = [*units, *(outer[i] for i in order)]
    sch.reorder(*outer_loops, *reduction, *inner)

    shared = outer_loops
    if pack and tile.rows_inside and _needs_panel(sch, anchor, tile, hint):
        shared = outer_loops[:-1]  # the panel is packed at these loops, outside the row tiles
        _copy_panel(sch, anchor, tile, shared[-1])
    sch.reverse_compute_at(epilogue, outer_loops[-1], preserve_unit_loops=True)
    tile_loops = sch.get_loops(epilogue)[len(outer_loops) :]
    finish = dict(zip(facts.spatial, tile_loops, strict=True))
    vector = _split(sch, finish.pop(tile.vector), tile.length)
    rest = [loop for i, loop in finish.items() if i != tile.row]
    sch.reorder(*rest, *([finish[tile.row]] if tile.row is not None else []), *vector)
    unroll_and_vectorize(sch, sch.get_loops(epilogue)[len(outer_loops) :])
    unroll_and_vectorize(sch, inner)
    if tile.row is None and facts.reduced <= _UNROLLED:
        for loop in reduction:
            sch.unroll(loop)
    parallelize(sch, shared, hint, facts.work)
    # Last, because TVM cannot prove a loop parallel after decompose_reduction of its reduction.
    init = sch.decompose_reduction(anchor, reduction[0])
    unroll_and_vectorize(sch, sch.get_loops(init)[-len(inner) :])


def _needs_panel(sch: s_tir.Schedule, anchor: SBlockRV, tile: VectorTile, hint: CpuHint) -> bool:
    """Return whether packing the shared panel pays: large strides and enough row tiles."""
    facts = block_facts(sch, anchor)
    reads = [r for r in facts.reads if r.strides[tile.vector] == 1]
    if len(reads) != 1 or not is_einsum(sch, anchor):
        return False
    itemsize = reads[0].buffer.dtype.itemsize
    steps = [(facts.axes[i].extent, reads[0].strides[i] * itemsize) for i in facts.reduction]
    moves = [(extent, step) for extent, step in steps if extent > 1 and step > 0]
    width = tile.columns * tile.length
    tasks = math.prod(facts.axes[i].extent for i in facts.spatial if i != tile.row) // width
    return (
        bool(moves)
        and tile.row is not None
        and all(step >= _FAR for _, step in moves)
        and facts.axes[tile.row].extent >= _PANEL_USES * tile.rows
        and math.prod(extent for extent, _ in moves) * width * itemsize <= hint.arch.l2_bytes // 2
        and (tasks % hint.arch.cores == 0 or tasks >= hint.tasks_per_core * hint.arch.cores)
    )


def _copy_panel(sch: s_tir.Schedule, anchor: SBlockRV, tile: VectorTile, loop: LoopRV) -> None:
    """Pack the panel that the row tiles share into contiguous memory.

    Before -> after, for a matmul of 384 x 1536 weights and tiles 64 wide::

        for jo: for io: for k: ... B[k, jo * 64 + j]

        for jo:
            for k: for j in T.vectorized(64): P[k, j] = B[k, jo * 64 + j]
            for io: for k: ... P[k, j]
    """
    facts = block_facts(sch, anchor)
    (read,) = (r for r in facts.reads if r.strides[tile.vector] == 1)
    buffers = [region.source for region in sch.get(anchor).reads]
    index = next(n for n, buffer in enumerate(buffers) if buffer.same_as(read.buffer))
    panel = sch.cache_read(anchor, index, "global")
    sch.compute_at(panel, loop)
    sch.vectorize(_split(sch, sch.get_loops(panel)[-1], tile.length)[1])


def _split(sch: s_tir.Schedule, loop: LoopRV, inner: int) -> list[LoopRV]:
    return sch.split(loop, [int(sch.get(loop).extent) // inner, inner])


def _collapse_vector_axes(sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV) -> None:
    """Collapse the contiguous tail of the anchor's spatial axes, in the epilogue too.

    Before -> after::

        for f, y, x: for k: acc[f, y, x] += W[f, k] * X[k, y, x]
        for f, y, x: Y[f, y, x] = relu(acc[f, y, x])

        for f, p: for k: acc[f, p] += W[f, k] * X[k, p // W, p % W]
        for f, p: Y[f, p // W, p % W] = relu(acc[f, p])
    """
    facts = block_facts(sch, anchor)
    tail = contiguous_tail(facts, facts.spatial)
    if tail is None or len(tail.axes) < 2:
        return
    sch.transform_layout(anchor, ("write", 0), collapse_map(facts, tail.axes, len(facts.spatial)))
    collapse_axes(sch, epilogue, tail.axes)
    collapse_axes(sch, anchor, tail.axes)
