"""Serial reduction in every thread: pooling, depthwise convolution, and the fallback."""

from __future__ import annotations

import math

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import BlockFacts, block_facts, leaf_blocks
from tvmopt.kernels.cuda.common.inlining import inline_all, one_reduction
from tvmopt.kernels.cuda.common.loops import (
    extent,
    fuse_all,
    init_before,
    split_threads,
    split_vector,
    with_epilogue,
)
from tvmopt.kernels.cuda.common.vectors import lanes_of, moves_by_vectors
from tvmopt.kernels.cuda.elementwise.schedule import schedule_elementwise
from tvmopt.kernels.cuda.window.config import CudaFallbackConfig, CudaWindowConfig
from tvmopt.kernels.workload import Refusal

#: Bytes of the widest accumulator vector that TVM can generate in CUDA.
WIDEST = 16
# Most taps of a window that are unrolled.
_MOST_UNROLLED = 64


WINDOW_NAME = "gpu_window"


def emit_window(func: tirx.PrimFunc, config: CudaWindowConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func``, which must hold exactly one reduction.

    Before -> after, for 3 x 3 pooling with vectors of 8 channels::

        for n, h, w, c: for y, x: P[n, h, w, c] = max(P[...], X[n, 2 * h + y, 2 * w + x, c])

        for nhw in blockIdx.x, t in threadIdx.x:
            for y, x: for v in vectorized(8): p[v] = max(p[v], X[...])
            for v in vectorized(8): P[...] = p[v]
    """
    found = one_reduction(func)
    if isinstance(found, Refusal):
        return found
    sch, facts = found
    block = sch.get_sblock(facts.name)
    vector = _vector(facts, config.vector_elements)
    if config.vectorize_compute and vector * int(facts.write.buffer.dtype.itemsize) > WIDEST:
        return Refusal(f"TVM has no accumulator vector of more than {WIDEST} bytes")
    end = with_epilogue(sch, block)
    loops = sch.get_loops(block)
    spatial = [lp for lp, a in zip(loops, facts.axes, strict=True) if not a.reduce]
    reduced = [lp for lp, a in zip(loops, facts.axes, strict=True) if a.reduce]
    spatial = spatial or [sch.add_unit_loop(loops[0])]
    sch.reorder(*spatial, *reduced)
    tile = config.vectors_per_thread
    own = []
    if tile > 1:
        if len(spatial) < 2 or extent(sch, spatial[-2]) % tile:
            return Refusal("the vectors of a thread do not divide the axis before the innermost")
        spatial[-2], one = sch.split(spatial[-2], [None, tile])
        sch.reorder(*spatial, one, *reduced)
        own = [one]
    pieces, lane = split_vector(sch, spatial, vector)
    grid, x = split_threads(sch, pieces, config.threads)
    sch.reorder(grid, x, *reduced, *own, lane)
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    sch.reverse_compute_at(end, x, preserve_unit_loops=True)
    if math.prod(extent(sch, loop) for loop in sch.get_loops(end)[2:]) != vector * tile:
        return Refusal("its epilogue would store more than a thread computes")
    for loop in own:
        sch.unroll(loop)
    if math.prod(extent(sch, loop) for loop in reduced) <= _MOST_UNROLLED:
        for loop in reduced:
            sch.unroll(loop)
    if vector == 1:
        init_before(sch, block, reduced[0])
        return sch
    if lanes_of(sch, end) < vector:
        sch.unroll(sch.get_loops(end)[-1])
    else:
        sch.vectorize(sch.get_loops(end)[-1])
    if config.vectorize_compute:
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


def emit_fallback(func: tirx.PrimFunc, config: CudaFallbackConfig) -> s_tir.Schedule:
    """Schedule any function of leaf blocks, a kernel for each block."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    for block in leaf_blocks(sch):
        if block_facts(sch, block).reduction:
            _serial(sch, block, config.threads)
        else:
            schedule_elementwise(sch, block, config.threads, 1)
    return sch


def _serial(sch: s_tir.Schedule, block: SBlockRV, threads: int) -> None:
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
    grid, x = split_threads(sch, flat, threads)
    sch.bind(grid, "blockIdx.x")
    sch.bind(x, "threadIdx.x")
    if copy is not None:
        sch.reverse_compute_at(copy, x, preserve_unit_loops=True)
