"""Elementwise functions: one vectorised pass over the output."""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.analysis import Axis, all_facts, block_facts, leaf_blocks, substitute, variables
from tvmopt.kernels.cuda.common.inlining import inlined_elementwise
from tvmopt.kernels.cuda.common.loops import extent, fuse_all, split_vector
from tvmopt.kernels.cuda.common.vectors import (
    cache_reads,
    cache_result,
    lanes_of,
    load_at,
    moves_by_vectors,
    starts_aligned,
    store_at,
)
from tvmopt.kernels.cuda.elementwise.config import CudaElementwiseConfig
from tvmopt.kernels.workload import Refusal

# Most lanes of a vector that TVM can generate from gathered elements.
_MOST_GATHERED = 4
# A block with less than 1/8 of the largest block's work gets one vector a thread: it ends
# in the time of the largest one only if it has many threads.
_SMALL_SHARE = 8


NAME = "gpu_elementwise"


def emit(func: tirx.PrimFunc, config: CudaElementwiseConfig) -> s_tir.Schedule | Refusal:
    """Schedule the elementwise function ``func``, each remaining block as a kernel.

    Before -> after, with vectors of 8 and 4 of them a thread::

        for i, j: T[i, j] = ...
        for i, j: Y[i, j] = f(T[i, j])

        for b in blockIdx.x, u in unroll(4), t in threadIdx.x:
            for v in vectorized(8): X_local[v] = X[...]
            for v in range(8): Y_local[v] = f(X_local[v])
            for v in vectorized(8): Y[...] = Y_local[v]
    """
    sch = inlined_elementwise(func)
    if isinstance(sch, Refusal):
        return sch
    most = max(facts.work for facts in all_facts(sch))
    for block in leaf_blocks(sch):
        is_small = block_facts(sch, block).work * _SMALL_SHARE < most
        schedule_elementwise(
            sch,
            block,
            config.threads,
            config.vector_elements,
            1 if is_small else config.vectors_per_thread,
            config.vectorize_compute,
        )
    return sch


def schedule_elementwise(
    sch: s_tir.Schedule,
    block: SBlockRV,
    threads: int,
    vector: int,
    vectors_per_thread: int = 1,
    vectorize_compute: bool = False,
) -> None:
    """Schedule one root-level block without reduction as a kernel.

    The arguments are the fields of :class:`CudaElementwiseConfig`.
    """
    facts = block_facts(sch, block)
    inner = max((i for i, a in enumerate(facts.axes) if a.extent > 1), default=0)
    work = facts.work
    vector = vector if work % vector == 0 else 1
    exact = bool(facts.axes) and facts.axes[inner].extent % vector == 0
    whole = vectorizes(sch, block, inner, vector) if exact else is_flat(sch, block, vector)
    # TVM caches no buffer that several blocks write, each a part of it.
    writers = sum(f.write.buffer.same_as(facts.write.buffer) for f in all_facts(sch))
    registers = exact and writers == 1 and moves_by_vectors(facts, facts.write, inner, vector)
    if vectorize_compute and whole:
        registers = False
    elif not registers and not whole:
        vector, exact = 1, True  # TVM's code for vectors of scattered elements does not compile
    copies = cache_reads(sch, block, inner, vector) if registers else []
    result = cache_result(sch, block, vector) if registers and vector > 1 else None
    loops = sch.get_loops(block) or [sch.add_unit_loop(block)]
    if exact:
        pieces, lane = split_vector(sch, loops, vector)
    else:
        pieces, lane = sch.split(fuse_all(sch, loops), [work // vector, vector])
    if extent(sch, pieces) == 1:  # a constant index: no bounds check would stop further threads
        threads = vectors_per_thread = 1
    grid, step, thread = sch.split(pieces, [None, vectors_per_thread, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if vectors_per_thread > 1:
        sch.unroll(step)
    if result is not None:
        load_at(sch, copies, thread)
        store_at(sch, result, thread)
        sch.unroll(lane)
    elif vector > 1:
        sch.vectorize(lane)


def vectorizes(sch: s_tir.Schedule, block: SBlockRV, inner: int, vector: int) -> bool:
    """Whether TVM can vectorise the block by ``vector`` steps of axis ``inner``.

    Each access must be one aligned vector or a broadcast, and no dtype in the arithmetic may need
    more than 16 bytes a vector.
    """
    facts = block_facts(sch, block)
    if vector > _lanes(sch, block) or facts.conditional[inner]:
        return False
    if not moves_by_vectors(facts, facts.write, inner, vector):
        return False
    var = facts.axes[inner].var
    scattered = gathered = False

    def on_load(load: ir.TensorLoad) -> None:
        nonlocal scattered, gathered
        if not len(load.indices):
            return
        *rows, last = load.indices
        if any(var in variables(row) for row in rows):
            scattered = True
        elif var in variables(last):
            # Rows may be gathered; within a row the access must be contiguous like the output.
            start = substitute(last, {var: tirx.IntImm(str(var.ty.dtype), 0)})
            start = sym.Analyzer().simplify(start)
            aligned = isinstance(start, tirx.IntImm) and int(start) % vector == 0
            scattered = scattered or not aligned or int(load.source.shape[-1]) % vector != 0
            gathered = gathered or not _side_by_side(last, facts.axes[inner], vector)

    tvm_ffi.structural_walk(sch.get(block).body, (ir.TensorLoad, on_load), order="post")
    if not scattered:
        return vector <= _MOST_GATHERED or not gathered
    return all(
        read.strides[inner] == 0 or moves_by_vectors(facts, read, inner, vector)
        for read in facts.reads
    )


def _side_by_side(index: ir.Expr, axis: Axis, vector: int) -> bool:
    """Whether ``index`` steps by one within each aligned group of ``vector`` steps of ``axis``."""
    dtype = str(axis.var.ty.dtype)
    part, place = tirx.Var("part", dtype), tirx.Var("place", dtype)
    analyzer = sym.Analyzer()
    analyzer.bind(part, ir.Range(0, max(1, axis.extent // vector)))
    analyzer.bind(place, ir.Range(0, vector))
    moved = substitute(index, {axis.var: part * vector + place})
    start = substitute(index, {axis.var: part * vector})
    return bool(analyzer.can_prove_equal(moved, start + place))


def _lanes(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """Return the most lanes with which the block can be computed."""
    return min(lanes_of(sch, block), int(16 / itemsize(block_facts(sch, block).dtype)))


def is_flat(sch: s_tir.Schedule, block: SBlockRV, vector: int) -> bool:
    """Whether every access has the strides of the output, or is a broadcast.

    Args:
        sch: The schedule.
        block: The block.
        vector: Vector length.
    """
    facts = block_facts(sch, block)
    return (
        vector <= _lanes(sch, block)
        and not any(facts.conditional)
        and all(
            (read.strides == facts.write.strides and starts_aligned(facts, read, vector))
            or not any(s != 0 for s in read.strides)
            for read in facts.reads
        )
    )
