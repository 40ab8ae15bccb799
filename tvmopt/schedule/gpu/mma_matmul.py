"""Products of matrices on tensor cores by warp (mma.sync), convolution as implicit GEMM.

A thread block computes a tile of the result, each of its warps a part. Steps of the reduction are
copied to shared memory, several ahead (cp.async); ldmatrix loads fragments from there. The sums go
through shared memory to the epilogue, which stores whole rows.
"""

from __future__ import annotations

import math
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.arch.cuda import itemsize
from tvmopt.intrin.mma import COLUMNS, LANES, ROWS, MmaIntrinsic

from .base import GpuTemplate
from .hint import GpuHint
from .product import VECTOR_BYTES, Operand, Product, inline_consumers, inline_producers, normalise
from .simt_matmul import bind_blocks, pipeline


class MmaMatmul(GpuTemplate):
    """Tiles by warps on tensor cores.

    ``hint.block`` is the rows and columns of a thread block, ``hint.warp`` those of a warp,
    ``hint.rstep`` the depth of a step, ``hint.stages`` the steps in flight.
    """

    name = "mma_matmul"

    def apply(self, func: tirx.PrimFunc, hint: GpuHint) -> s_tir.Schedule | None:
        """Schedule ``func`` as ``hint`` says; None when the template does not fit."""
        product = normalise(func)
        if product is None:
            return None
        sch, anchor = product.sch, product.anchor
        types = [str(region.source.dtype) for region in sch.get(anchor).reads]
        a_along, b_along = product.a.contiguous != "i", product.b.contiguous != "j"
        if types[0] == "int8":
            a_along = b_along = True
        if types[0] != types[1] or hint.arch.tensor_shape(types[0]) is None:
            return None
        try:
            mma = MmaIntrinsic(types[0], product.sums, a_along, b_along)
        except ValueError:
            return None
        (bm, bn), (wm, wn), bk = hint.block, hint.warp, hint.rstep
        if bm % wm or bn % wn or wm % ROWS or wn % COLUMNS or bk % mma.depth:
            return None
        warps = (bm // wm) * (bn // wn)
        sch.pad_einsum(anchor, [1, bm, bn, bk])
        batch, i, j, k = sch.get_loops(anchor)
        i, i_in = sch.split(i, [None, ROWS])
        j, j_in = sch.split(j, [None, COLUMNS])
        k, k_in = sch.split(k, [None, mma.depth])
        sch.reorder(batch, i, j, k, i_in, j_in, k_in)
        inner, outer = anchor, sch.blockize(i_in)
        i0, i1, i2 = sch.split(i, [None, bm // wm, wm // ROWS])
        j0, j1, j2 = sch.split(j, [None, bn // wn, wn // COLUMNS])
        k0, k1 = sch.split(k, [None, bk // mma.depth])
        sch.reorder(batch, i0, j0, i1, j1, k0, k1, i2, j2)
        block = bind_blocks(sch, batch, i0, j0, hint.raster)
        warp = sch.fuse(i1, j1)
        sch.bind(warp, "threadIdx.y")

        copies = [
            _copy(sch, outer, n, operand, k0, warps, along, hint)
            for n, (operand, along) in enumerate(((product.a, a_along), (product.b, b_along)))
        ]
        fragments = []
        for n in range(2):
            fragment = sch.cache_read(outer, n, "warp")
            sch.compute_at(fragment, k1)
            fragments.append(fragment)
        result = sch.cache_write(outer, 0, "shared.dyn")
        sums = sch.cache_write(outer, 0, "warp")
        size = itemsize(product.sums)
        sch.storage_align(sums, 0, axis=1, factor=int(32 / size), offset=int(16 / size))
        sch.reverse_compute_at(sums, warp)
        sch.reverse_compute_at(result, block if hint.option("by_block") else warp)
        tile = _tile(sch, sums, ROWS, COLUMNS)
        init = sch.decompose_reduction(outer, k0)
        depth = mma.depth
        tiles = []
        for fragment, along, place in zip(
            fragments, (a_along, b_along), (mma.place_a, mma.place_b), strict=True
        ):
            tiles.append(_tile(sch, fragment, *((ROWS, depth) if along else (depth, ROWS))))
            sch.transform_layout(fragment, ("write", 0), _fragment_map(place, depth, along))
        sch.transform_layout(
            sums,
            ("read", 0),
            lambda s, i, j: (s, i // ROWS, j // COLUMNS, *mma.place_c(i % ROWS, j % COLUMNS)),
        )
        sch.tensorize(tiles[0], mma.load_a())
        sch.tensorize(tiles[1], mma.load_b())
        sch.tensorize(sch.get_loops(inner)[-3], mma.multiply())
        (init_inner,) = sch.get_child_blocks(init)
        sch.tensorize(sch.get_loops(init_inner)[-2], mma.zero())
        sch.tensorize(tile, mma.store())
        inline_consumers(sch, result)
        _store(sch, result, product, warps if hint.option("by_block") else 1)
        if hint.option("ahead"):
            sch.annotate(k1, "software_pipeline_stage", [0, 0, 1])
            sch.annotate(k1, "software_pipeline_order", [0, 1, 2])
        else:
            sch.unroll(k1)
        for loop in (i2, j2):
            sch.unroll(loop)
        pipeline(sch, k0, copies, hint.stages, hint.async_copy)
        return sch


def _fragment_map(place: Any, depth: int, along: bool) -> Any:
    """Where an element of an operand, in the order of its shared memory, lies in a fragment."""

    def index(s: Any, x: Any, k: Any) -> Any:
        return (s, x // ROWS, k // depth, *place(x % ROWS, k % depth))

    def transposed(s: Any, k: Any, x: Any) -> Any:
        return index(s, x, k)

    return index if along else transposed


def _copy(
    sch: s_tir.Schedule,
    outer: SBlockRV,
    n: int,
    operand: Operand,
    at: LoopRV,
    warps: int,
    along: bool,
    hint: GpuHint,
) -> SBlockRV:
    """Copy operand ``n`` to shared memory, its rows 16 bytes apart from a multiple of 32."""
    copy = sch.cache_read(outer, n, "shared.dyn")
    size = itemsize(str(sch.get(copy).writes[0].source.dtype))
    if not along:
        sch.transform_layout(copy, ("write", 0), lambda s, x, k: (s, k, x))
    sch.compute_at(copy, at)
    inline_producers(sch, copy)
    sch.storage_align(copy, 0, axis=1, factor=int(32 / size), offset=int(16 / size))
    along_k = operand.contiguous == "k" if operand.contiguous else along
    x, k = sch.get_loops(copy)[-2:]
    if not along_k:
        sch.reorder(k, x)
    straight = along_k == along
    vector = min(operand.run, int(VECTOR_BYTES / max(size, itemsize(operand.dtype))))
    if not straight:
        vector = 1
    count, inner = hint.rstep * hint.block[n], hint.rstep if along_k else hint.block[n]
    while vector > 1 and (count % (warps * LANES * vector) or inner % vector):
        vector //= 2
    fused = sch.fuse(*((x, k) if along_k else (k, x)))
    _, y, lane, element = sch.split(fused, [None, warps, LANES, vector])
    sch.bind(lane, "threadIdx.x")
    sch.bind(y, "threadIdx.y")
    if vector > 1:
        sch.vectorize(element)
    return copy


def _tile(sch: s_tir.Schedule, block: SBlockRV, height: int, width: int) -> LoopRV:
    """Split the last two loops into tiles; the first loop of a tile."""
    x, y = sch.get_loops(block)[-2:]
    x0, x1 = sch.split(x, [None, height])
    y0, y1 = sch.split(y, [None, width])
    sch.reorder(x0, y0, x1, y1)
    sch.unroll(x0)
    sch.unroll(y0)
    return x1


def _store(sch: s_tir.Schedule, result: SBlockRV, product: Product, warps: int) -> None:
    """Write finished rows from shared memory, as vectors."""
    rows, columns = sch.get_loops(result)[-2:]
    width = int(sch.get(columns).extent)
    count = int(sch.get(rows).extent) * width
    size = max(itemsize(product.out), itemsize(product.sums))
    vector = math.gcd(width, product.out_run, int(VECTOR_BYTES / size))
    while vector > 1 and count % (warps * LANES * vector):
        vector //= 2
    fused = sch.fuse(rows, columns)
    _, y, lane, element = sch.split(fused, [None, warps, LANES, vector])
    sch.bind(lane, "threadIdx.x")
    if warps > 1:
        sch.bind(y, "threadIdx.y")
    if vector > 1:
        sch.vectorize(element)
