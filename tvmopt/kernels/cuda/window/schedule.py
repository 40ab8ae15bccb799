"""Serial reduction in every thread: pooling, depthwise convolution, and the fallback."""

from __future__ import annotations

import math

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import BlockFacts, all_facts, block_facts, leaf_blocks
from tvmopt.kernels.cuda.common.steps import (
    extent,
    fuse_all,
    init_before,
    inline_all,
    lanes_of,
    moves_by_vectors,
    output_block,
    spatial_extent,
    split_threads,
    split_vector,
    with_epilogue,
)
from tvmopt.kernels.cuda.elementwise.schedule import schedule_elementwise
from tvmopt.kernels.cuda.hint import CudaHint

#: Bytes of the widest accumulator vector that TVM can generate in CUDA.
WIDEST = 16


WINDOW_NAME = "gpu_window"


def emit_window(func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
    """Schedule ``func``; None unless it holds exactly one reduction.

    Before -> after, for 3 x 3 pooling with vectors of 8 channels::

        for n, h, w, c: for y, x: P[n, h, w, c] = max(P[...], X[n, 2 * h + y, 2 * w + x, c])

        for nhw in blockIdx.x, t in threadIdx.x:
            for y, x: for v in vectorized(8): p[v] = max(p[v], X[...])
            for v in vectorized(8): P[...] = p[v]
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    blocks = all_facts(sch)
    found = [f for f in blocks if f.reduction]
    last = output_block(sch)
    if len(found) != 1 or found[0].stores != 1 or last is None or len(blocks) > 2:
        return None
    final = block_facts(sch, last)
    if not final.reduction and final.work != spatial_extent(found[0]):
        return None
    block = sch.get_sblock(found[0].name)
    vector = _vector(found[0], hint.vector)
    threads = hint.thread[0] if hint.thread else 128
    size = int(found[0].write.buffer.dtype.itemsize)
    if hint.option("direct") and vector * size > WIDEST:
        return None
    end = with_epilogue(sch, block)
    loops = sch.get_loops(block)
    spatial = [lp for lp, a in zip(loops, found[0].axes, strict=True) if not a.reduce]
    reduced = [lp for lp, a in zip(loops, found[0].axes, strict=True) if a.reduce]
    spatial = spatial or [sch.add_unit_loop(loops[0])]
    sch.reorder(*spatial, *reduced)
    tile = hint.option("tile", 1)
    own = []
    if tile > 1:
        if len(spatial) < 2 or extent(sch, spatial[-2]) % tile:
            return None
        spatial[-2], one = sch.split(spatial[-2], [None, tile])
        sch.reorder(*spatial, one, *reduced)
        own = [one]
    pieces, lane = split_vector(sch, spatial, vector)
    grid, x = split_threads(sch, pieces, threads)
    sch.reorder(grid, x, *reduced, *own, lane)
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    sch.reverse_compute_at(end, x, preserve_unit_loops=True)
    if math.prod(extent(sch, loop) for loop in sch.get_loops(end)[2:]) != vector * tile:
        return None
    for loop in own:
        sch.unroll(loop)
    if math.prod(extent(sch, loop) for loop in reduced) <= hint.option("unroll", 64):
        for loop in reduced:
            sch.unroll(loop)
    if vector == 1:
        init_before(sch, block, reduced[0])
        return sch
    if lanes_of(sch, end) < vector:
        sch.unroll(sch.get_loops(end)[-1])
    else:
        sch.vectorize(sch.get_loops(end)[-1])
    if hint.option("direct"):
        sch.vectorize(lane)
        sch.decompose_reduction(block, reduced[0])  # the lanes are vectorised already
    else:
        sch.unroll(lane)
        init_before(sch, block, reduced[0])
    return sch


def _vector(facts: BlockFacts, wanted: int) -> int:
    """Return the longest vector, up to ``wanted``, along the last axis of the output."""
    inner = max((i for i in facts.spatial if facts.axes[i].extent > 1), default=-1)
    if inner < 0 or facts.write.strides[inner] != 1:
        return 1
    if not any(r.strides[inner] == 1 for r in facts.reads):
        return 1
    vector = math.gcd(wanted, facts.axes[inner].extent)
    accesses = [facts.write, *(r for r in facts.reads if r.strides[inner] == 1)]
    while vector > 1 and not all(moves_by_vectors(facts, a, inner, vector) for a in accesses):
        vector //= 2
    return vector


FALLBACK_NAME = "gpu_fallback"


def emit_fallback(func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
    """Schedule any function of leaf blocks, a kernel for each block."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    for block in leaf_blocks(sch):
        if block_facts(sch, block).reduction:
            _serial(sch, block, hint)
        else:
            schedule_elementwise(sch, block, hint)
    return sch


def _serial(sch: s_tir.Schedule, block: SBlockRV, hint: CudaHint) -> None:
    """Schedule a reduction block with one thread for each output element."""
    facts = block_facts(sch, block)
    copy = sch.cache_write(block, 0, "local") if facts.stores == 1 else None
    loops = sch.get_loops(block)
    spatial: list[LoopRV] = [loops[i] for i, a in enumerate(facts.axes) if not a.reduce]
    reduced = [loops[i] for i in facts.reduction]
    if not spatial:
        spatial = [sch.add_unit_loop(loops[0])]
    sch.reorder(*spatial, *reduced)
    flat = fuse_all(sch, spatial)
    grid, x = split_threads(sch, flat, hint.thread[0] if hint.thread else 128)
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    if copy is not None:
        sch.reverse_compute_at(copy, x, preserve_unit_loops=True)
