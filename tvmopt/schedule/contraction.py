"""One reduction with many independent outputs: convolution, matmul, pooling, column sums.

The schedule is the register-tiled loop nest of GotoBLAS without packing: a tile of accumulators
(rows x vectors) stays in vector registers while the reduction runs, one operand is loaded as
vectors, the other as scalars broadcast to all lanes; the epilogue works on the tile before it is
stored.
"""

from __future__ import annotations

import dataclasses
import math

from tvm import IRModule, s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.arch.cpu import CpuArch

from .analysis import BlockFacts, block_facts, leaf_blocks
from .base import ScheduleRule
from .stage import (
    collapse_axes,
    collapse_map,
    contiguous_suffix,
    inline_injective,
    parallelize,
    schedule_injective,
    divisors,
    vector_length,
)


@dataclasses.dataclass(frozen=True)
class Tile:
    """The register tile of an anchor whose vectorised axes are already one axis.

    Attributes:
        vector: Index of the vectorised axis.
        length: Elements of one vector. At most one register long: LLVM passes longer vectors of
            odd length from one iteration to the next in scalar pieces.
        columns: Vectors side by side in a tile.
        row: Index of the axis whose steps reuse the loaded vectors, or None.
        rows: Elements of that axis in a tile.
        rows_inside: Whether the row tiles are the innermost of the tile loops.
    """

    vector: int
    length: int
    columns: int
    row: int | None
    rows: int
    rows_inside: bool


class Contraction(ScheduleRule):
    """Register-tile the only reduction block; fuse what follows it into the tile."""

    name = "contraction"

    def apply(self, func: tirx.PrimFunc, arch: CpuArch) -> s_tir.Schedule | None:
        sch = s_tir.Schedule(IRModule({"main": func}))
        facts = [block_facts(sch, block) for block in leaf_blocks(sch)]
        anchors = [f for f in facts if f.reduction]
        if len(anchors) != 1 or anchors[0].stores != 1:
            return None
        anchor = sch.get_sblock(anchors[0].name)
        inline_injective(sch)
        _inline_copies(sch, anchor)
        if not contiguous_suffix(block_facts(sch, anchor), block_facts(sch, anchor).spatial):
            return None
        epilogue = _epilogue(sch, anchor)
        stages = [
            sch.get(b).name_hint
            for b in leaf_blocks(sch)
            if not (sch.get(b).same_as(sch.get(anchor)) or sch.get(b).same_as(sch.get(epilogue)))
        ]
        _collapse_vector_axes(sch, anchor, epilogue)
        tile = choose_tile(block_facts(sch, anchor), arch)
        if tile is None:
            return None
        schedule_tile(sch, anchor, epilogue, tile, arch)
        for name in stages:
            schedule_injective(sch, sch.get_sblock(name), arch)
        return sch


def choose_tile(facts: BlockFacts, arch: CpuArch) -> Tile | None:
    """Pick the vector axis, the row axis and their tile lengths for one anchor."""
    lanes = arch.lanes(str(facts.write.buffer.dtype))
    wide = [i for i in facts.spatial if facts.axes[i].extent > 1]
    if not wide or facts.write.strides[wide[-1]] != 1 or facts.conditional[wide[-1]]:
        return None
    vector = wide[-1]
    budget = arch.vector_registers * 3 // 4
    vector_reads = [r for r in facts.reads if r.strides[vector] != 0]
    # Stepping a row axis keeps the loaded vectors: convolution's output channel, matmul's row.
    row_axes = [i for i in wide[:-1] if all(r.strides[i] == 0 for r in vector_reads)]
    row = max(row_axes, key=lambda i: facts.axes[i].extent, default=None)
    extent = facts.axes[vector].extent
    length = vector_length(extent, lanes, 1)
    best, best_score = Tile(vector, length, 1, row, 1, False), 0.0
    for columns in divisors(extent // length, budget):
        rows = 1
        if row is not None:
            rows = max(divisors(facts.axes[row].extent, budget // columns))
        # Multiplications for each vector or scalar loaded; without a row axis, just enough
        # independent accumulators to hide the latency of an addition.
        score = rows * columns / (rows + columns) if row is not None else -abs(columns - 4)
        if score > best_score or columns == 1:
            best, best_score = Tile(vector, length, columns, row, rows, False), score
    if row is not None:
        vector_bytes = max((_bytes(r.buffer) for r in vector_reads), default=0)
        row_bytes = max((_bytes(r.buffer) for r in facts.reads if r.strides[row] != 0), default=0)
        best = dataclasses.replace(best, rows_inside=vector_bytes > row_bytes)
    return best


def schedule_tile(
    sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV, tile: Tile, arch: CpuArch
) -> None:
    """Apply ``tile`` to ``anchor`` and move ``epilogue`` to where a tile is complete.

    Before -> after, for a tile of 6 rows x 32::

        for f, p: for k: acc[f, p] += W[f, k] * X[k, p]
        for f, p: Y[f, p] = relu(acc[f, p])

        for fo_po in T.parallel(...):
            for fi in T.unroll(6): for pi in T.vectorized(32): acc[fi, pi] = 0
            for k: for fi in T.unroll(6): for pi in T.vectorized(32): acc[fi, pi] += ...
            for fi in T.unroll(6): for pi in T.vectorized(32): Y[...] = relu(acc[fi, pi])
    """
    facts = block_facts(sch, anchor)
    loops = sch.get_loops(anchor)
    reduction = [loops[i] for i in facts.reduction]
    outer = {i: loops[i] for i in facts.spatial}
    outer[tile.vector], inner_columns = _split(
        sch, loops[tile.vector], tile.columns * tile.length
    )
    inner = _split(sch, inner_columns, tile.length)
    if tile.row is not None:
        outer[tile.row], inner_row = _split(sch, loops[tile.row], tile.rows)
        inner.insert(0, inner_row)
    order = [i for i in facts.spatial if i not in (tile.row, tile.vector)]
    if tile.row is not None:
        # The loop that runs fastest re-reads its operand for every step of the other one.
        order += [tile.vector, tile.row] if tile.rows_inside else [tile.row, tile.vector]
    else:
        order += [tile.vector]
    outer_loops = [outer[i] for i in order]
    sch.reorder(*outer_loops, *reduction, *inner)

    sch.reverse_compute_at(epilogue, outer_loops[-1])
    _unroll_and_vectorize(sch, inner)
    finish = sch.get_loops(epilogue)[len(outer_loops) :]
    _unroll_and_vectorize(sch, [*finish[:-1], *_split(sch, finish[-1], tile.length)])
    parallelize(sch, outer_loops, arch, facts.work)
    # Last, because TVM proves no loop around a reduction parallel once its init is apart.
    init = sch.decompose_reduction(anchor, reduction[0])
    _unroll_and_vectorize(sch, sch.get_loops(init)[-len(inner) :])


def _unroll_and_vectorize(sch: s_tir.Schedule, loops: list[LoopRV]) -> None:
    """The last loop becomes a vector, the others straight-line code."""
    for loop in loops[:-1]:
        if int(sch.get(loop).extent) > 1:
            sch.unroll(loop)
    if int(sch.get(loops[-1]).extent) > 1:
        sch.vectorize(loops[-1])


def _split(sch: s_tir.Schedule, loop: LoopRV, inner: int) -> list[LoopRV]:
    return sch.split(loop, [int(sch.get(loop).extent) // inner, inner])


def _bytes(buffer: tirx.Buffer) -> int:
    return math.prod(int(e) for e in buffer.shape)


def _inline_copies(sch: s_tir.Schedule, anchor: SBlockRV) -> None:
    """Inline producers that only copy (a pad of nothing, a reshape); others stay stages."""
    for producer in sch.get_producers(anchor):
        facts = block_facts(sch, producer)
        is_copy = len(facts.reads) == 1 and not any(facts.conditional) and not facts.calls
        same = facts.reads and facts.reads[0].strides == facts.write.strides
        if facts.reduction or not (is_copy and same):
            continue
        try:
            sch.compute_inline(producer)
        except ScheduleError:
            continue


def _epilogue(sch: s_tir.Schedule, anchor: SBlockRV) -> SBlockRV:
    """The block that finishes the anchor's elements one by one; a copy when there is none.

    The consumer serves when it is the only one and its axes are the anchor's spatial axes, in
    their order. Otherwise it stays a stage of its own, and the copy is made for the tile.
    """
    facts = block_facts(sch, anchor)
    consumers = sch.get_consumers(anchor)
    if len(consumers) == 1:
        consumer = block_facts(sch, consumers[0])
        reads = [r for r in consumer.reads if r.buffer.same_as(facts.write.buffer)]
        spatial = [facts.axes[i].extent for i in facts.spatial]
        if (
            not consumer.reduction
            and [a.extent for a in consumer.axes] == spatial
            and all(r.strides == _strides(facts.write.buffer) for r in reads)
        ):
            sch.set_scope(anchor, 0, "local")
            return consumers[0]
    return sch.cache_write(anchor, 0, "local")


def _strides(buffer: tirx.Buffer) -> tuple[int, ...]:
    """Row-major strides; 0 for extent 1, as :class:`Access` has them."""
    strides: list[int] = []
    step = 1
    for extent in reversed([int(e) for e in buffer.shape]):
        strides.insert(0, step if extent > 1 else 0)
        step *= extent
    return tuple(strides)


def _collapse_vector_axes(sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV) -> None:
    """Make the contiguous tail of the anchor's spatial axes one axis, in the epilogue too.

    Before -> after::

        for f, y, x: for k: acc[f, y, x] += W[f, k] * X[k, y, x]
        for f, y, x: Y[f, y, x] = relu(acc[f, y, x])

        for f, p: for k: acc[f, p] += W[f, k] * X[k, p // W, p % W]
        for f, p: Y[f, p // W, p % W] = relu(acc[f, p])
    """
    facts = block_facts(sch, anchor)
    tail = contiguous_suffix(facts, facts.spatial)
    if len(tail) < 2:
        return
    sch.transform_layout(anchor, ("write", 0), collapse_map(facts, tail, len(facts.spatial)))
    collapse_axes(sch, epilogue, tail)
    collapse_axes(sch, anchor, tail)
