"""Products of matrices without tensor cores: a register tile a thread, operands in shared memory.

A thread block computes a tile of the result. A step of the reduction is copied to shared memory,
several steps ahead; each thread keeps ``groups x 4`` rows by ``groups x 4`` columns of sums in
registers, the groups far apart, so that the threads of a warp read 16 bytes each from shared memory
side by side.
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.arch.cuda import itemsize

from .base import GpuTemplate
from .hint import GpuHint
from .product import VECTOR_BYTES, Operand, Product, inline_consumers, inline_producers, normalise

_GROUP = 4


class SimtMatmul(GpuTemplate):
    """Rows and columns of sums in registers, operands in shared memory, no tensor cores.

    ``hint.block`` is the rows and columns of a thread block, ``hint.thread`` the threads along
    them, ``hint.rstep`` the depth of a step, ``hint.stages`` the steps in flight (by cp.async with
    ``async_copy``, else through registers), ``hint.raster`` rows of blocks side by side.

    Options: ``along_k``: 1 when operands stored along k keep that order in shared memory, so that
    a thread reads 16 bytes along k; 0 when they are transposed on the way. ``lanes_m``: rows of
    threads in a warp. ``unroll``: 0 leaves the steps along k to nvcc.
    """

    name = "simt_matmul"

    def apply(self, func: tirx.PrimFunc, hint: GpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None when the template does not fit.

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
        if why_not(hint):
            return None
        product = normalise(func)
        if product is None:
            return None
        sch, anchor = product.sch, product.anchor
        (bm, bn), (tm, tn), bk = hint.block, hint.thread, hint.rstep
        threads = tm * tn
        sch.pad_einsum(anchor, [1, bm, bn, bk])
        store = sch.cache_write(anchor, 0, "local")
        batch, i, j, k = sch.get_loops(anchor)
        lanes_m, lanes_n = _lanes(hint)
        vm, vn = math.gcd(bm // tm, _GROUP), math.gcd(bn // tn, _GROUP)
        io, ig, iw, il, iv = sch.split(i, [None, bm // tm // vm, tm // lanes_m, lanes_m, vm])
        jo, jg, jw, jl, jv = sch.split(j, [None, bn // tn // vn, tn // lanes_n, lanes_n, vn])
        ko, ki = sch.split(k, [None, bk])
        sch.reorder(batch, io, jo, ig, jg, iw, jw, il, jl, ko, ki, iv, jv)
        bind_blocks(sch, batch, io, jo, hint.raster)
        sch.bind(ig, "vthread.y")
        sch.bind(jg, "vthread.x")
        thread = sch.fuse(iw, jw, il, jl)
        sch.bind(thread, "threadIdx.x")
        sch.reverse_compute_at(store, thread, preserve_unit_loops=True)
        inline_consumers(sch, store)
        _store(sch, store, product)
        along = bool(hint.option("along_k"))
        k_major = [not (x.contiguous == "k" and along) for x in (product.a, product.b)]
        deep = ki
        if not all(k_major):
            ki, deep = sch.split(ki, [None, _GROUP])
        copies = [
            self._copy(sch, anchor, n, operand, ko, threads, hint, k_major[n])
            for n, operand in enumerate((product.a, product.b))
        ]
        for n, width in enumerate((vm, vn)):
            at = deep if k_major[n] else ki
            _fragment(sch, anchor, n, at, k_major[n], width)
        sch.decompose_reduction(anchor, ko)
        for loop in (iv, jv):
            sch.unroll(loop)
        if hint.option("unroll", 1):
            sch.unroll(ki)
        if not all(k_major):
            sch.unroll(deep)
        pipeline(sch, ko, copies, hint.stages, hint.async_copy)
        return sch

    @staticmethod
    def _copy(
        sch: s_tir.Schedule,
        anchor: SBlockRV,
        n: int,
        operand: Operand,
        at: LoopRV,
        threads: int,
        hint: GpuHint,
        k_major: bool,
    ) -> SBlockRV:
        """Copy operand ``n`` to shared memory, together, and pad its rows against conflicts."""
        copy = sch.cache_read(anchor, n, "shared.dyn")
        ctype = itemsize(str(sch.get(copy).writes[0].source.dtype))
        if k_major:
            sch.transform_layout(copy, ("write", 0), lambda s, x, k: (s, k, x))
        sch.compute_at(copy, at, preserve_unit_loops=True)
        inline_producers(sch, copy)
        width = int(VECTOR_BYTES / ctype)
        along_k = operand.contiguous == "k"
        s, x, k = sch.get_loops(copy)[-3:]
        if not along_k:
            sch.reorder(k, x)
        # Padding of a row: 16 bytes; a transposing copy is written by 4-byte words.
        if along_k or not k_major:
            sch.storage_align(copy, 0, axis=1, factor=32, offset=width)
        count = hint.rstep * hint.block[n]
        straight = along_k != k_major
        vector = min(operand.run, int(VECTOR_BYTES / max(ctype, itemsize(operand.dtype))))
        if not straight and hint.async_copy:
            vector = 1
        inner = hint.rstep if along_k else hint.block[n]
        while vector > 1 and (count % (threads * vector) or inner % vector):
            vector //= 2
        fused = sch.fuse(s, *((x, k) if along_k else (k, x)))
        _, thread, element = sch.split(fused, [None, threads, vector])
        sch.bind(thread, "threadIdx.x")
        if vector > 1:
            sch.vectorize(element)
        return copy


def why_not(hint: GpuHint) -> str:
    """What is wrong with ``hint``; empty when nothing is."""
    if len(hint.block) != 2 or len(hint.thread) != 2 or hint.rstep < 1:
        return "block and thread must be of two axes and rstep positive"
    threads = math.prod(hint.thread)
    if any(b % t for b, t in zip(hint.block, hint.thread, strict=True)):
        return "threads must divide the block"
    if threads % 32 or threads > hint.arch.threads_block:
        return "threads must be whole warps, at most a block of them"
    if any(b * hint.rstep % threads for b in hint.block):
        return "each thread must copy the same number of elements"
    return ""


def _lanes(hint: GpuHint) -> tuple[int, int]:
    """Rows and columns of threads in a warp."""
    (tm, tn), rows = hint.thread, hint.option("lanes_m", 4)
    while tm % rows or tn % (hint.arch.warp // rows):
        rows = rows * 2 if rows < hint.arch.warp else 1
        if rows == 1:
            return 1, 1
    return rows, hint.arch.warp // rows


def bind_blocks(
    sch: s_tir.Schedule, batch: LoopRV, rows: LoopRV, columns: LoopRV, raster: int
) -> LoopRV:
    """Number the tiles along ``blockIdx.x``, ``raster`` rows of them side by side."""
    extent = int(sch.get(rows).extent)
    panel = max(d for d in range(1, max(1, raster) + 1) if extent % d == 0)
    outer, inner = sch.split(rows, [None, panel])
    sch.reorder(outer, columns, inner)
    block = sch.fuse(batch, outer, columns, inner)
    sch.bind(block, "blockIdx.x")
    return block


def _store(sch: s_tir.Schedule, store: SBlockRV, product: Product) -> None:
    """Write what a thread has: rows unrolled, columns as vectors."""
    *_, rows, columns = sch.get_loops(store)
    width = int(sch.get(columns).extent)
    sch.unroll(rows)
    vector = math.gcd(width, product.out_run, int(VECTOR_BYTES / itemsize(product.out)))
    if vector > 1:
        outer, inner = sch.split(columns, [None, vector])
        sch.unroll(outer)
        sch.vectorize(inner)
    else:
        sch.unroll(columns)


def _fragment(
    sch: s_tir.Schedule, anchor: SBlockRV, n: int, at: LoopRV, k_major: bool, width: int
) -> None:
    """Read what a thread multiplies next into registers, as vectors."""
    fragment = sch.cache_read(anchor, n, "local")
    sch.compute_at(fragment, at, preserve_unit_loops=True)
    # In the order of the shared buffer's axes.
    *_, outer, inner = sch.get_loops(fragment)
    sch.unroll(outer)
    if not k_major or width > 1:
        sch.vectorize(inner)


def pipeline(
    sch: s_tir.Schedule, loop: LoopRV, copies: list[SBlockRV], stages: int, is_async: bool
) -> None:
    """Let the copies of a step run ``stages - 1`` steps ahead of its products."""
    if stages < 2:
        return
    if is_async:
        count = len(copies)
        stage, order = [*[0] * count, stages - 1], list(range(count + 1))
        sch.annotate(loop, "software_pipeline_async_stages", [0])
    else:
        for copy in copies:
            sch.annotate(copy, "tirx.manifest_shared_memory_local_stage", 1)
        # Each copy is two statements now: into registers, before the products; from them, after.
        stage, order = [], []
        count = len(copies)
        for n in range(count):
            stage += [0, 0]
            order += [n, count + 1 + n]
        stage, order = [*stage, 1], [*order, count]
    sch.annotate(loop, "software_pipeline_stage", stage)
    sch.annotate(loop, "software_pipeline_order", order)
