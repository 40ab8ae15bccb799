"""GotoBLAS loop nest for contractions: matmul, dense, convolution, transposed convolution.

A register tile of accumulators (rows x vectors) stays in registers over the reduction. The weight
is loaded as vectors; the data is loaded as scalars and broadcast. The weight is packed so that the
micro-kernel reads it with unit stride; constant weights are prepacked when the model is built. The
fused epilogue (bias, residual, activation, cast) runs on the tile before the store.
"""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, block_facts
from tvmopt.kernels.cpu.common.contraction_form import match_contraction
from tvmopt.kernels.cpu.common.nest import (
    Dot,
    NestLoops,
    misfit,
    schedule_nest,
    schedule_rest,
    unit_loops,
)
from tvmopt.kernels.cpu.common.prefetch_rules import epilogue_stalls
from tvmopt.kernels.cpu.common.weight_copy import copy_weight, dimension_axes, schedule_packing
from tvmopt.kernels.cpu.intrinsics import dot_named
from tvmopt.kernels.cpu.passes.prefetch import annotate_prefetch
from tvmopt.kernels.cpu.register_tile.config import RegisterTileConfig
from tvmopt.kernels.workload import Refusal


def emit(func: tirx.PrimFunc, hint: RegisterTileConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func`` with the configuration ``hint``.

    Before -> after, for a tile of 6 rows x 2 vectors of 16::

        for m, n: for k: acc[m, n] += A[m, k] * B[k, n]
        for m, n: Y[m, n] = relu(acc[m, n])

        for no, mo in T.parallel(...):
            for mi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16): acc[...] = 0
            for k:
                for mi in T.unroll(6): for c in T.unroll(2): for v in T.vectorized(16):
                    acc[...] += A[m, k] * P[no, k, c * 16 + v]
            for mi in T.unroll(6): for v in T.vectorized(32): Y[...] = ...
    """
    form = match_contraction(func)
    if isinstance(form, Refusal):
        return form
    stalls = epilogue_stalls(form, hint.arch)
    refusal = misfit(hint, form.extents, hint.l2_block, hint.loops_in_k_block)
    if refusal is not None:
        return refusal
    if any(hint.l2_block[-1:]):
        return Refusal("the vectorised axis cannot be cache-blocked")
    intrinsic = dot_named(hint.intrinsic) if hint.intrinsic else None
    if intrinsic is not None and (intrinsic != form.dot(hint.arch) or hint.packing == "none"):
        return Refusal(f"{hint.intrinsic} does not suit the operands, or their packing")
    sch, anchor, epilogue = form.sch, form.anchor, form.epilogue
    lanes = intrinsic.lanes if intrinsic else hint.arch.lanes(form.facts.dtype)
    width = hint.register_tile[-1]
    if intrinsic:
        split_reduction(sch, anchor, form.contiguous, intrinsic.depth)
    _split_vector_axis(sch, anchor, epilogue, width)
    facts = block_facts(sch, anchor)
    operands = [r for r in facts.reads if r.strides[facts.spatial[-1]] != 0]
    if len(operands) != 1:
        return Refusal("the tile spans several groups of a grouped convolution")
    if hint.packing == "none":
        if width % lanes or operands[0].strides[facts.spatial[-1]] != 1:
            return Refusal("the weight has no whole vectors to read in place")
    else:
        _pack(sch, anchor, operands[0], lanes, hint)
        facts = block_facts(sch, anchor)
    loops = sch.get_loops(anchor)
    *others, tiles, place = facts.spatial
    rows, outer, l2_blocks, partial = [], [], [], []
    for n, i in enumerate(others):
        size = hint.l2_block[n] if hint.l2_block else 0
        around, row = sch.split(loops[i], [None, hint.register_tile[n]])
        if size:
            l2_block, around = sch.split(around, [None, size // hint.register_tile[n]])
            l2_blocks.append(l2_block)
        elif facts.axes[i].extent % hint.register_tile[n]:
            partial.append(around)
        rows.append(row)
        outer.append(around)
    reduction = [loops[i] for i in facts.reduction]
    dot = Dot(intrinsic, reduction.pop()) if intrinsic else None
    k_blocks = []
    if hint.k_block and int(sch.get(reduction[-1]).extent) > hint.k_block:
        k, reduction[-1] = sch.split(reduction[-1], [None, hint.k_block])
        k_blocks = [k]
    annotate_prefetch(sch, reduction[-1], hint.prefetch_bytes, hint.arch)
    nest = NestLoops(
        units=unit_loops(facts, loops),
        outer=[*outer, loops[tiles], *l2_blocks],
        reduction=reduction,
        rows=rows,
        vectors=sch.split(loops[place], [None, lanes]),
        k_blocks=k_blocks,
        partial=partial,
    )
    schedule_nest(
        form, hint, nest, loops_in_k_block=hint.loops_in_k_block, dot=dot, prefetch=stalls
    )
    schedule_rest(sch, hint)
    return sch


def split_reduction(sch: s_tir.Schedule, anchor: SBlockRV, axis: int, depth: int) -> None:
    """Split a reduction axis into groups of ``depth``; the loop within a group is innermost.

    Before -> after, for a depth of 4::

        for m, n: for k: acc[m, n] += A[m, k] * B[k, n]
        for m, n: for ko: for ki: acc[m, n] += A[m, ko * 4 + ki] * B[ko * 4 + ki, n]
    """

    def split(*indices: tirx.Var) -> list[tirx.Expr]:
        k = indices[axis]
        return [*indices[:axis], k // depth, *indices[axis + 1 :], k % depth]

    rank = len(block_facts(sch, anchor).axes)
    sch.transform_block_layout(anchor, tirx.IndexMap.from_func(split, ndim=rank))


def _split_vector_axis(
    sch: s_tir.Schedule, anchor: SBlockRV, epilogue: SBlockRV, width: int
) -> None:
    """Split the vectorised axis into tiles: o -> (o // width, o % width)."""
    facts = block_facts(sch, anchor)
    last, rank = facts.spatial[-1], len(facts.axes)

    def write(*indices: tirx.Var) -> list[tirx.Expr]:
        return [*indices[:-1], indices[-1] // width, indices[-1] % width]

    def axes(*indices: tirx.Var) -> list[tirx.Expr]:
        o = indices[last]
        return [*indices[:last], o // width, o % width, *indices[last + 1 :]]

    # Transform the block axes before the buffer layout: in the other order TVM does not simplify
    # the index and computes the wrong region of the epilogue.
    sch.transform_block_layout(anchor, tirx.IndexMap.from_func(axes, ndim=rank))
    consumer = len(block_facts(sch, epilogue).axes)
    sch.transform_block_layout(epilogue, tirx.IndexMap.from_func(write, ndim=consumer))
    sch.transform_layout(
        anchor, ("write", 0), tirx.IndexMap.from_func(write, ndim=len(facts.spatial))
    )


def _pack(
    sch: s_tir.Schedule,
    anchor: SBlockRV,
    weight: Access,
    lanes: int,
    hint: RegisterTileConfig,
) -> None:
    """Pack the weight: (tile, reduction, element in the tile), zero-padded to whole vectors.

    Before -> after, for tiles of 40 columns on 16 lanes::

        for m, no, ni: for k: acc[m, no, ni] += A[m, k] * B[k, no * 40 + ni]

        for no, k, ni: P[no, k, ni] = if ni < 40: B[k, no * 40 + ni] else 0     (48 wide)
        for m, no, ni: for k: acc[m, no, ni] += A[m, k] * P[no, k, ni]

    For a dot-product instruction the K group is innermost: ``P[no, k // 4, ni, k % 4]``.
    """
    copy = copy_weight(sch, anchor, weight, lanes)
    order = _packed_order(sch, anchor, copy, bool(hint.intrinsic))
    if order != sorted(order):

        def permute(*indices: tirx.Var) -> list[tirx.Var]:
            return [indices[d] for d in order]

        index_map = tirx.IndexMap.from_func(permute, ndim=len(order))
        sch.transform_layout(copy, ("write", 0), index_map)
        sch.transform_block_layout(copy, index_map)
    schedule_packing(sch, copy, hint, hint.packing)


def _packed_order(
    sch: s_tir.Schedule, anchor: SBlockRV, copy: SBlockRV, k_groups: bool
) -> list[int]:
    """Return the packed dimension order: data-parallel, reduction in loop order, vector.

    With ``k_groups`` the last reduction dimension (the K group) is innermost.
    """
    facts = block_facts(sch, anchor)
    axis_of = dimension_axes(sch, anchor, copy)
    vector = facts.spatial[-1]

    def rank(dimension: int) -> tuple[int, int]:
        i = axis_of.get(dimension, -1)
        if i == vector:
            return 2, 0
        if k_groups and i == facts.reduction[-1]:
            return 3, 0
        return (1 if i >= 0 and facts.axes[i].reduce else 0), i

    return sorted(range(len(sch.get(copy).writes[0].source.shape)), key=rank)
