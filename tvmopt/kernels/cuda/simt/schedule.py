"""SIMT GEMM: a register tile a thread, operands double-buffered in shared memory.

A thread block computes an output tile. The next K block is loaded into registers while the current
one is multiplied from shared memory, then stored to the other shared-memory buffer. A thread holds
``groups x 4`` rows by ``groups x 4`` columns of accumulators. Its groups are far apart, so that the
threads of a warp read neighbouring 16-byte vectors::

    columns of warp 0, 2 groups:  | t0 | t1 | ... | t7 | ... next warps ... | t0 | t1 | ... | t7 |
                                  |<-- group 0 ------>|                     |<-- group 1 ------>|
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.gemm_form import GemmForm, normalise
from tvmopt.kernels.cuda.common.gemm_inlining import inline_consumers, inline_producers
from tvmopt.kernels.cuda.common.gemm_operand import VECTOR_BYTES, GemmOperand
from tvmopt.kernels.cuda.common.order import bind_blocks, pipeline
from tvmopt.kernels.cuda.common.split_k import schedule_split_k_reduction, split_k_reduction
from tvmopt.kernels.cuda.simt.config import SimtConfig
from tvmopt.kernels.workload import Refusal

# Staged elements of a thread up to which shared memory is double-buffered. With more, the extra
# registers cost one of two resident thread blocks.
_FEW_STAGED = 8


NAME = "simt_matmul"


def emit(func: tirx.PrimFunc, config: SimtConfig) -> s_tir.Schedule | Refusal:
    """Schedule the GEMM ``func`` as configured by ``config``.

    Before -> after::

        for i, j: for k: C[i, j] += A[i, k] * B[k, j]

        for block: for group: for thread:
            for ko in pipelined:
                As[k, i] = A[i, ko * 8 + k]; Bs[k, j] = B[ko * 8 + k, j]
                for k in T.unroll(8):
                    a[0:4] = As[k, i:i + 4]; b[0:4] = Bs[k, j:j + 4]
                    for i in T.unroll(4): for j in T.unroll(4): acc[i, j] += a[i] * b[j]
            C[i, j] = acc[i, j]
    """
    if (refusal := why_not_simt(config)) is not None:
        return refusal
    gemm = normalise(func)
    if isinstance(gemm, Refusal):
        return gemm
    if gemm.extents[3] < config.split_k:
        return Refusal("K is shorter than the split-K factor")
    sch, anchor = gemm.sch, gemm.anchor
    (bm, bn), (tm, tn), bk = config.tile, config.threads, config.k_block
    sch.pad_einsum(anchor, [1, bm, bn, bk * config.split_k])
    total = None
    if config.split_k > 1:
        anchor, total = split_k_reduction(sch, anchor, config.split_k)
    store = sch.cache_write(anchor, 0, "local")
    *batch, i, j, k = sch.get_loops(anchor)
    lanes_m, lanes_n = _warp_shape(config)
    vm, vn = math.gcd(bm // tm, _group(gemm)), math.gcd(bn // tn, _group(gemm))
    io, ig, iw, il, iv = sch.split(i, [None, bm // tm // vm, tm // lanes_m, lanes_m, vm])
    jo, jg, jw, jl, jv = sch.split(j, [None, bn // tn // vn, tn // lanes_n, lanes_n, vn])
    ko, ki = sch.split(k, [None, bk])
    sch.reorder(*batch, io, jo, ig, jg, iw, jw, il, jl, ko, ki, iv, jv)
    bind_blocks(sch, batch, io, jo, config.raster_group)
    # Virtual threads share all but accumulators; code that depends on none is emitted once.
    sch.bind(ig, "vthread.y")
    sch.bind(jg, "vthread.x")
    thread = sch.fuse(iw, jw, il, jl)
    sch.bind(thread, "threadIdx.x")
    sch.reverse_compute_at(store, thread, preserve_unit_loops=True)
    run = gemm.store_elements
    if total is None:
        inline_consumers(sch, store)
        run = gemm.out_run
    _store(sch, store, math.gcd(run, gemm.store_elements))
    copies = [_copy(sch, anchor, n, x, ko, config) for n, x in enumerate(gemm.operands)]
    for operand in gemm.operands:
        _fragment(sch, anchor, operand, ki)
    sch.decompose_reduction(anchor, ko)
    for loop in (ki, iv, jv):
        sch.unroll(loop)
    # nvcc unrolls: the source text of so many multiply-adds would take it seconds.
    sch.annotate(ki, "pragma_unroll_explicit", 0)
    stages = min(config.stages, int(sch.get(ko).extent))
    if stages > 1:
        staged = sum(config.tile) * bk / math.prod(config.threads)
        pipeline(sch, ko, copies, stages, config.async_copy, double_buffered=staged <= _FEW_STAGED)
    if total is not None:
        schedule_split_k_reduction(sch, total, math.gcd(gemm.out_run, gemm.store_elements))
    return sch


def why_not_simt(config: SimtConfig) -> Refusal | None:
    """Return why no GEMM can have ``config``; None where one can."""
    threads = math.prod(config.threads)
    if config.k_block < 1 or config.stages < 1 or config.split_k < 1:
        return Refusal("k_block, stages and split_k must be at least 1")
    if any(b % t for b, t in zip(config.tile, config.threads, strict=True)):
        return Refusal("threads must divide the tile")
    if threads % config.arch.warp or threads > config.arch.threads_block:
        return Refusal("threads must be whole warps, at most a block of them")
    if any(b * config.k_block % threads for b in config.tile):
        return Refusal("each thread must copy the same number of elements")
    if config.stages > 2 and not config.async_copy:
        return Refusal("more than two stages need async_copy")
    return None


def _warp_shape(config: SimtConfig) -> tuple[int, int]:
    """Return rows and columns of threads in a warp."""
    (tm, tn), rows, warp = config.threads, config.warp_rows, config.arch.warp
    while tm % rows or tn % (warp // rows):
        rows = rows * 2 if rows < warp else 1
        if rows == 1:
            return 1, 1
    return rows, warp // rows


def _group(gemm: GemmForm) -> int:
    """Return the vector width of a thread's loads from shared memory, in elements."""
    widest = max(itemsize(x.dtype) for x in gemm.operands)
    return max(1, int(VECTOR_BYTES / widest))


def _store(sch: s_tir.Schedule, store: SBlockRV, vector: int) -> None:
    """Store the accumulators of a thread: rows unrolled, columns as vectors."""
    *_, rows, columns = sch.get_loops(store)
    width = int(sch.get(columns).extent)
    sch.unroll(rows)
    outer, inner = sch.split(columns, [None, math.gcd(width, vector)])
    sch.unroll(outer)
    if math.gcd(width, vector) > 1:
        sch.vectorize(inner)


def _copy(
    sch: s_tir.Schedule,
    anchor: SBlockRV,
    place: int,
    operand: GemmOperand,
    at: LoopRV,
    config: SimtConfig,
) -> SBlockRV:
    """Copy an operand to shared memory as [k][x], with padded rows where that transposes it."""
    size, threads = itemsize(operand.dtype), math.prod(config.threads)
    copy = sch.cache_read(anchor, operand.index, "shared.dyn")
    sch.transform_layout(copy, ("write", 0), lambda s, x, k: (s, k, x))
    sch.compute_at(copy, at, preserve_unit_loops=True)
    inline_producers(sch, copy)
    width = int(VECTOR_BYTES / size)
    s, x, k = sch.get_loops(copy)[-3:]
    along_k = operand.contiguous == "k"
    order = (x, k) if along_k else (k, x)
    if along_k:
        # Threads with neighbours along k write different rows: the padding avoids bank conflicts.
        sch.storage_align(copy, 0, axis=1, factor=int(128 / size), offset=width)
    else:
        sch.reorder(k, x)
    inner = config.k_block if along_k else config.tile[place]
    count = config.k_block * config.tile[place]
    vector = min(operand.run, max(1, int(VECTOR_BYTES / max(size, operand.size))))
    if along_k and config.async_copy:
        vector = 1  # cp.async transposes element by element
    elif along_k or size == 1:
        vector = min(vector, 4)  # TVM generates wrong code for longer scattered or byte vectors
    while vector > 1 and (count % (threads * vector) or inner % vector):
        vector //= 2
    fused = sch.fuse(s, *order)
    _, thread, element = sch.split(fused, [None, threads, vector])
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(element)
    return copy


def _fragment(sch: s_tir.Schedule, anchor: SBlockRV, operand: GemmOperand, at: LoopRV) -> None:
    """Load a thread's next operand fragment into registers, as vectors."""
    fragment = sch.cache_read(anchor, operand.index, "local")
    sch.compute_at(fragment, at, preserve_unit_loops=True)
    # The axes of the shared buffer: k, then rows or columns.
    inner = sch.get_loops(fragment)[-1]
    if int(sch.get(inner).extent) > 1:
        sch.vectorize(inner)
