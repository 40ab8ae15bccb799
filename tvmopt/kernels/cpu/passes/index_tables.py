"""Resize by interpolation: index and weight tables, vectorised over channels.

A resize computes source indices and interpolation weights per element: a dozen floating-point
operations that depend only on the row or only on the column. Tables hold them once per row and once
per column. The operands of the remaining weighted sum are contiguous along channels only. In NCHW,
one row at a time is therefore computed channels-last, and transposed while it is in the L1 cache.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts
from tvmopt.kernels.cpu.common.stage import parallelize, split_vector, vectorize_tail
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.passes.transpose import (
    choose_tile,
    most_lanes,
    schedule_transpose,
    tile_innermost,
)

# Maximum expressions of a block: for more (cubic interpolation) TVM's common-subexpression search
# takes seconds.
_MOST_EXPRESSIONS = 800
# Minimum channels for the channels-last rows in NCHW.
_FEWEST_CHANNELS = 8


def schedule_interpolation(sch: s_tir.Schedule, block: SBlockRV, hint: CpuHint) -> bool:
    """Schedule a root-level block that interpolates.

    Before -> after, for ``B[y, x, c]``, linear along x alone::

        for y, x, c: B[y, x, c] = A[y, int(x * 0.5), c] * (1 - frac(x * 0.5)) + A[...] * frac(...)

        for x in T.vectorized(X): I[x] = int(x * 0.5)             (four of them)
        for y in T.parallel(Y): for x: for c in T.vectorized(C):
            B[y, x, c] = A[y, I[x], c] * U[x] + A[y, J[x], c] * V[x]

    Returns:
        Whether the block was scheduled.
    """
    facts = block_facts(sch, block)
    channel = _channel_axis(facts)
    if channel is None:
        return False
    inner = max(i for i, axis in enumerate(facts.axes) if axis.extent > 1)
    if channel == inner:
        _tabulate(sch, block, hint)
        around = vectorize_tail(sch, block_facts(sch, block), sch.get_loops(block), hint)
        parallelize(sch, around, hint, facts.work)
        return True
    return _schedule_planes(sch, block, channel, inner, hint)


def _channel_axis(facts: BlockFacts) -> int | None:
    """Return the innermost axis with constant strides in all interpolated loads; or None."""
    moved = [read for read in facts.reads if None in read.strides]
    if (
        len(moved) < 2  # one load is nearest-neighbour: LLVM's gathers are as fast
        or facts.stores != 1
        or facts.size > _MOST_EXPRESSIONS
        or any(facts.conditional)
        or not all(_computes_position(read) for read in moved)
    ):
        return None
    wide = [i for i, axis in enumerate(facts.axes) if axis.extent > 1]
    steady = [i for i in wide if all(read.strides[i] is not None for read in moved)]
    # The batch axis has a constant stride, too; channels are the innermost such axis.
    return steady[-1] if steady and facts.axes[steady[-1]].extent >= 2 else None


def _computes_position(read: Access) -> bool:
    """Return whether an index is floating-point arithmetic without loads from memory."""
    casts: list[tirx.Cast] = []
    loads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(
        read.offset,
        [(tirx.Cast, casts.append), (ir.TensorLoad, loads.append)],
        order="post",
    )
    return not loads and any("float" in str(cast.ty.dtype) for cast in casts)


def _tabulate(sch: s_tir.Schedule, block: SBlockRV, hint: CpuHint) -> None:
    """Cache the index and weight expressions of a single axis in tables (cache_index)."""
    for table in sch.cache_index(block, "global", 0):
        loops = sch.get_loops(table)
        if len(loops) == 1:
            split_vector(sch, loops[0], hint.arch.lanes("float32"), hint.vector_registers)


def _schedule_planes(
    sch: s_tir.Schedule, block: SBlockRV, channel: int, inner: int, hint: CpuHint
) -> bool:
    """Interpolate row by row in channels-last layout, from a transposed copy of the input.

    Before -> after, for one image::

        for c, y, x: B[c, y, x] = A[c, i(y), j(x)] * ...

        for y, x, c: P[y, x, c] = A[c, y, x]                      (in tiles)
        for y in T.parallel(Y):
            for x: for c in T.vectorized(C): R[x, c] = P[I[y], J[x], c] * ...
            for co, xo: for xi in T.unroll(8): for ci in T.vectorized(16): B[c, y, x] = R[x, c]
    """
    facts = block_facts(sch, block)
    moved = {read.buffer: None for read in facts.reads if None in read.strides}
    others = [read for read in facts.reads if None not in read.strides]
    if len(moved) != 1 or any(read.strides[inner] != 0 for read in others):
        return False
    [image] = moved
    channels, width = facts.axes[channel].extent, facts.axes[inner].extent
    lanes = hint.arch.lanes(facts.write.buffer.dtype)
    tile = choose_tile(channels, width, most_lanes(facts.write, channel, lanes), cut=True)
    if tile is None or channels < _FEWEST_CHANNELS or len(image.shape) != len(facts.axes):
        return False
    _tabulate(sch, block, hint)
    order = [i for i in range(len(facts.axes)) if i != channel] + [channel]

    def channels_last(*indices: tirx.Var) -> list[tirx.Var]:
        return [indices[i] for i in order]

    index_map = tirx.IndexMap.from_func(channels_last, ndim=len(order))
    buffers = [region.source for region in sch.get(block).reads]
    place = next(n for n, buffer in enumerate(buffers) if buffer.same_as(image))
    copy = sch.cache_read(block, place, "global")
    sch.transform_layout(copy, ("write", 0), index_map)
    result = sch.cache_write(block, 0, "global")
    sch.transform_layout(block, ("write", 0), index_map)
    sch.transform_block_layout(block, index_map)

    loops = sch.get_loops(result)
    around = [loops[i] for i in range(len(loops)) if i not in (channel, inner)]
    sch.reorder(*around, loops[channel], loops[inner])
    parallelize(sch, around, hint, facts.work)
    sch.compute_at(block, sch.get_loops(result)[-3], preserve_unit_loops=True)
    tile_innermost(sch, result, tile)
    split_vector(sch, sch.get_loops(block)[-1], lanes, hint.vector_registers)
    if not schedule_transpose(sch, copy, hint, cut=True):
        parallelize(sch, sch.get_loops(copy), hint, block_facts(sch, copy).work)
    return True
