"""Put an intrinsic under a condition, which ``Schedule.tensorize`` refuses to do.

Where the last tile of rows is not whole, TVM guards every row by a condition. A schedule then
marks the block instead, and the block gets the intrinsic's implementation when all else is done.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx

from .base import DotIntrinsic, implementation
from .choose import dot_named

#: Annotation of a block: name of the intrinsic that it is to be replaced by.
GUARDED = "tvmopt.intrin"


def replace_guarded(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Replace what marked blocks compute by their intrinsics; ``func`` itself without any.

    Before -> after, for a dot product of 16 lanes and 4 products::

        with T.sblock("sums_o"):
            T.where(i_0 * 14 + i_1 < 50)
            T.sblock_attr({"tvmopt.intrin": "tvmopt.vnni_512"})
            for j, k in T.grid(16, 4): C[i, j] += A[i, k] * B[j, k]

        with T.sblock("sums_o"):
            T.where(i_0 * 14 + i_1 < 50)
            a, b, c = T.match_buffer(A[i, 0:4]), T.match_buffer(B[0:16, 0:4]), ...
            c[0:16] = T.call_llvm_pure_intrin("llvm.x86.avx512.vpdpbusd.512", c[0:16], ...)
    """
    found = False

    def on_block(block: s_tir.SBlock) -> s_tir.SBlock:
        nonlocal found
        if GUARDED not in block.annotations:
            return block
        found = True
        return _replaced(block, dot_named(str(block.annotations[GUARDED])))

    body = tvm_ffi.structural_map(func.body, (s_tir.SBlock, on_block), order="post")
    return func.with_body(body) if found else func


def _replaced(block: s_tir.SBlock, dot: DotIntrinsic) -> s_tir.SBlock:
    made = implementation(dot)
    data, weight, sums = made.params
    regions = {
        data: _region(block, (dot.depth,)),
        weight: _region(block, (dot.lanes, dot.depth)),
        sums: block.writes[0],
    }
    views = [s_tir.MatchBufferRegion(view, region) for view, region in regions.items()]
    kept = {key: value for key, value in block.annotations.items() if key != GUARDED}
    return s_tir.SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        made.body.block.body,
        None,
        [],
        views,
        kept,
    )


def _region(block: s_tir.SBlock, shape: tuple[int, ...]) -> ir.TensorRegion:
    """What the block reads of that shape, the sums apart."""
    for region in block.reads:
        extents = [int(axis.extent) for axis in region.region]
        inner = extents[len(extents) - len(shape) :]
        same = region.source.same_as(block.writes[0].source)
        if not same and tuple(inner) == shape and set(extents[: -len(shape)]) <= {1}:
            return region
    raise ValueError(f"a block marked for an intrinsic must read {shape}, but got {block.reads}")
