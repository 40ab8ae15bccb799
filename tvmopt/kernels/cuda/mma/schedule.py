"""GEMM with warp MMA (mma.sync); convolution as implicit GEMM.

A thread block computes an output tile, each of its warps a part. K blocks are copied to shared
memory in a cp.async pipeline; ldmatrix loads fragments from there. The accumulators are spilled to
shared memory for the epilogue, which stores whole rows.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.inlining import inline_consumers, inline_producers
from tvmopt.kernels.cuda.common.order import bind_blocks, pipeline, pipeline_fragments
from tvmopt.kernels.cuda.common.packing import pack, packed
from tvmopt.kernels.cuda.common.product import VECTOR_BYTES, GemmOperand, Product, normalise
from tvmopt.kernels.cuda.common.split_k import finish_parts, split_reduction
from tvmopt.kernels.cuda.hint import CudaHint
from tvmopt.kernels.cuda.intrinsics.mma import COLUMNS, LANES, ROWS, MmaIntrinsic

NAME = "mma_matmul"


def emit(func: tirx.PrimFunc, hint: CudaHint) -> s_tir.Schedule | None:
    """Schedule ``func`` as configured by ``hint``; None when the template does not fit.

    Before -> after::

        for i, j: for k: C[i, j] += A[i, k] * B[j, k]

        for block: for warp:
            zero(sums)
            for ko in pipelined:
                As[i, k] = A[i, ko * 32 + k]; Bs[j, k] = B[j, ko * 32 + k]
                for k in T.unroll(2):
                    for i: a[i] = ldmatrix(As); for j: b[j] = ldmatrix(Bs)
                    for i, j: sums[i, j] = mma(a[i], b[j], sums[i, j])
            Cs[i, j] = sums
            C[i, j] = Cs[i, j]
    """
    product = normalise(func)
    mma = mma_of(product, hint) if product is not None else None
    if product is None or mma is None or why_not_mma(hint, mma):
        return None
    if product.extents[3] < max(2, hint.split_k):
        return None  # TVM sees no reduction in a loop of one iteration
    sch, anchor = product.sch, product.anchor
    (bm, bn), (wm, wn), bk = hint.block, hint.warp, hint.rstep
    warps = (bm // wm) * (bn // wn)
    sch.pad_einsum(anchor, [1, bm, bn, bk * hint.split_k])
    total = None
    if hint.split_k > 1:
        anchor, total = split_reduction(sch, anchor, hint.split_k)
    *batch, i, j, k = sch.get_loops(anchor)
    i, i_in = sch.split(i, [None, ROWS])
    j, j_in = sch.split(j, [None, COLUMNS])
    k, k_in = sch.split(k, [None, mma.depth])
    sch.reorder(*batch, i, j, k, i_in, j_in, k_in)
    inner, outer = anchor, sch.blockize(i_in)
    i0, i1, i2 = sch.split(i, [None, bm // wm, wm // ROWS])
    j0, j1, j2 = sch.split(j, [None, bn // wn, wn // COLUMNS])
    k0, k1 = sch.split(k, [None, bk // mma.depth])
    sch.reorder(*batch, i0, j0, i1, j1, k0, k1, i2, j2)
    bind_blocks(sch, batch, i0, j0, hint.raster)
    warp = sch.fuse(i1, j1)
    sch.bind(warp, "threadIdx.y")

    alongs = (mma.a_along_k, mma.b_along_k)
    copies = []
    for n, (operand, along) in enumerate(zip(product.copies, alongs, strict=True)):
        is_packed = bool(hint.option("pack") >> n & 1)
        guarded = operand.padded or product.ragged(operand, hint.block[n], bk * hint.split_k)
        if is_packed:
            packing = pack(sch, outer, operand.index, along)
            operand, guarded = packed(operand, along), False
        vector = _vector(operand, along, guarded)
        copies.append(_copy(sch, outer, n, operand, k0, warps, along, vector, hint))
        if is_packed and not along:
            # After its reader: a copy takes the layout of its source.
            sch.transform_layout(packing, ("write", 0), lambda s, x, k: (s, k, x))
    fragments = []
    for operand in product.copies:
        fragment = sch.cache_read(outer, operand.index, "local")
        sch.compute_at(fragment, k1, preserve_unit_loops=True)
        fragments.append(fragment)
    result = sch.cache_write(outer, 0, "shared.dyn")
    sums = sch.cache_write(outer, 0, "local")
    sch.reverse_compute_at(sums, warp, preserve_unit_loops=True)
    sch.reverse_compute_at(result, warp, preserve_unit_loops=True)
    tile = _tile(sch, sums, ROWS, COLUMNS)
    init = sch.decompose_reduction(outer, k0)
    _tensorize_loads(sch, fragments, mma)
    sch.transform_layout(sums, ("read", 0), _sums_map(mma, len(batch)))
    sch.tensorize(sch.get_loops(inner)[-3], mma.multiply())
    (init_inner,) = sch.get_child_blocks(init)
    sch.tensorize(sch.get_loops(init_inner)[-2], mma.zero())
    # Row pitch of 32 bytes more than a multiple of 128: stores of a warp hit different banks.
    stored, size = sch.blockize(tile), itemsize(product.sums)
    sch.storage_align(stored, 0, axis=-2, factor=int(128 / size), offset=int(32 / size))
    sch.tensorize(stored, mma.store())
    run = 16
    if total is None:
        inline_consumers(sch, result)
        run = product.out_run
    _store(sch, result, product, run)
    for loop in (i2, j2):
        sch.unroll(loop)
    sch.annotate(j2, "pragma_unroll_explicit", 0)
    stages = min(hint.stages, int(sch.get(k0).extent))
    # Unrolled, because registers cannot be indexed by a loop variable.
    sch.unroll(k1)
    if stages > 2 and hint.option("ahead") and bk > mma.depth:
        pipeline_fragments(sch, k0, k1, stages)
    elif stages > 1:
        pipeline(sch, k0, copies, stages, hint.async_copy)
    if total is not None:
        finish_parts(sch, total, math.gcd(product.out_run, _most(product)))
    return sch


def mma_of(product: Product, hint: CudaHint) -> MmaIntrinsic | None:
    """Return the MMA intrinsic for the operands of ``product``; None without one."""
    a, b = product.copies
    if hint.arch.tensor_shape(a.dtype) is None or hint.arch.sm < 80:
        return None
    # ldmatrix transposes 16-bit elements only: 8-bit operands are transposed by the copy.
    is_byte = itemsize(a.dtype) == 1
    a_along, b_along = (is_byte or x.contiguous != "x" for x in product.copies)
    swapped = a.index > b.index
    try:
        return MmaIntrinsic(a.dtype, product.sums, a_along, b_along, swapped, b.dtype)
    except ValueError:
        return None


def why_not_mma(hint: CudaHint, mma: MmaIntrinsic) -> str:
    """Return what is wrong with ``hint``; empty when nothing is."""
    if len(hint.block) != 2 or len(hint.warp) != 2:
        return "block and warp must be of two axes"
    if any(b % w for b, w in zip(hint.block, hint.warp, strict=True)):
        return "warps must divide the block"
    if hint.warp[0] % ROWS or hint.warp[1] % COLUMNS or hint.rstep % mma.depth or hint.rstep < 1:
        return f"a warp must be of tiles of {ROWS} x {COLUMNS}, rstep of {mma.depth}"
    threads = math.prod(b // w for b, w in zip(hint.block, hint.warp, strict=True)) * LANES
    if threads > hint.arch.threads_block:
        return "too many warps"
    if any(b * hint.rstep % threads for b in hint.block):
        return "each thread must copy the same number of elements"
    if hint.stages > 2 and not hint.async_copy:
        return "more than two stages need async_copy"
    return ""


def _tensorize_loads(sch: s_tir.Schedule, fragments: list[SBlockRV], mma: MmaIntrinsic) -> None:
    """Tensorize the copies from shared memory into fragments with ldmatrix."""
    loads = (
        (mma.a_along_k, mma.place_a, mma.load_a()),
        (mma.b_along_k, mma.place_b, mma.load_b()),
    )
    for fragment, (along, place, load) in zip(fragments, loads, strict=True):
        shape = (ROWS, mma.depth) if along else (mma.depth, ROWS)
        tile = _tile(sch, fragment, *shape)
        sch.transform_layout(fragment, ("write", 0), _fragment_map(place, mma.depth, along))
        sch.tensorize(tile, load)


def _fragment_map(place: Any, depth: int, along: bool) -> Any:
    """Return the map from an operand's shared-memory indices to fragment indices."""

    def index(s: Any, x: Any, k: Any) -> Any:
        return (s, x // ROWS, k // depth, *place(x % ROWS, k % depth))

    def transposed(s: Any, k: Any, x: Any) -> Any:
        return index(s, x, k)

    return index if along else transposed


def _sums_map(mma: MmaIntrinsic, batch: int) -> Any:
    """Return the map from output indices to accumulator fragment indices, with ``batch`` axes."""

    def index(s: Any, i: Any, j: Any) -> Any:
        return (s, i // ROWS, j // COLUMNS, *mma.place_c(i % ROWS, j % COLUMNS))

    def of_part(p: Any, s: Any, i: Any, j: Any) -> Any:
        return (p, *index(s, i, j))

    return index if batch == 1 else of_part


def _copy(
    sch: s_tir.Schedule,
    outer: SBlockRV,
    place: int,
    operand: GemmOperand,
    at: LoopRV,
    warps: int,
    along: bool,
    vector: int,
    hint: CudaHint,
) -> SBlockRV:
    """Copy an operand to shared memory with a row pitch of an odd multiple of 16 bytes."""
    copy = sch.cache_read(outer, operand.index, "shared.dyn")
    size = itemsize(operand.dtype)
    if not along:
        sch.transform_layout(copy, ("write", 0), lambda s, x, k: (s, k, x))
    sch.compute_at(copy, at, preserve_unit_loops=True)
    if not hint.option("pack") >> place & 1:
        inline_producers(sch, copy)
    sch.storage_align(copy, 0, axis=1, factor=int(32 / size), offset=int(16 / size))
    x, k = sch.get_loops(copy)[-2:]
    along_k = operand.contiguous == "k" if operand.contiguous else along
    if not along_k:
        sch.reorder(k, x)
    count = hint.rstep * hint.block[place]
    inner = hint.rstep if along_k else hint.block[place]
    while vector > 1 and (count % (warps * LANES * vector) or inner % vector):
        vector //= 2
    fused = sch.fuse(*((x, k) if along_k else (k, x)))
    _, y, lane, element = sch.split(fused, [None, warps, LANES, vector])
    sch.bind(lane, "threadIdx.x")
    sch.bind(y, "threadIdx.y")
    if vector > 1:
        sch.vectorize(element)
    return copy


def _vector(operand: GemmOperand, along: bool, guarded: bool) -> int:
    """Return the vector width of an operand's copy, in elements."""
    size = itemsize(operand.dtype)
    if (operand.contiguous == "k" if operand.contiguous else along) != along:
        return 1
    most = int(VECTOR_BYTES / max(size, operand.size))
    if size == 1 and guarded:
        most = 4  # TVM generates wrong code for selects of longer byte vectors
    return min(operand.run, most)


def _tile(sch: s_tir.Schedule, block: SBlockRV, height: int, width: int) -> LoopRV:
    """Tile the last two loops; return the first loop of a tile."""
    x, y = sch.get_loops(block)[-2:]
    x0, x1 = sch.split(x, [None, height])
    y0, y1 = sch.split(y, [None, width])
    sch.reorder(x0, y0, x1, y1)
    sch.unroll(x0)
    sch.unroll(y0)
    return x1


def _most(product: Product) -> int:
    """Return the vector width of output stores, in elements."""
    return max(1, int(VECTOR_BYTES / max(itemsize(product.out), itemsize(product.sums))))


def _store(sch: s_tir.Schedule, result: SBlockRV, product: Product, run: int) -> None:
    """Store finished rows from shared memory with vectors."""
    rows, columns = sch.get_loops(result)[-2:]
    width = int(sch.get(columns).extent)
    count = int(sch.get(rows).extent) * width
    vector = math.gcd(width, run, _most(product))
    while vector > 1 and count % (LANES * vector):
        vector //= 2
    fused = sch.fuse(rows, columns)
    _, lane, element = sch.split(fused, [None, LANES, vector])
    sch.bind(lane, "threadIdx.x")
    if vector > 1:
        sch.vectorize(element)
