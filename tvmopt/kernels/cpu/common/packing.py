"""Packing: copy and pad the operands of a contraction, where reuse pays for the copy.

A micro-kernel loads full vectors along the innermost output axis. Strided convolutions, ``A B^T``
and 7 x 7 feature maps have no such contiguous vectors; a packed copy of the operand has. Every
output channel (or row) uses each packed element once. For a k x k convolution packing is im2col.
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import Access, Axis, BlockFacts, block_facts
from tvmopt.kernels.cpu.common.stage import (
    collapse_axes,
    collapse_map,
    contiguous_tail,
    divisors,
    vector_length,
)

# Minimum uses of a packed element for packing to pay: against short or strided vectors (one or two
# shuffles each), and against gathers.
_REUSE_SHORT, _REUSE_GATHER = 64, 8
# Largest stride for which LLVM emits vector loads with shuffles instead of gathers.
_SHUFFLE_STEP = 4
# Lane utilisation above which the vector axis is not padded.
_GOOD_USE = 0.7
# Register tiles with fewer rows are load-bound.
_FEW_ROWS = 4
_ROW_MULTIPLE = 8


def pack_operands(sch: s_tir.Schedule, anchor: SBlockRV, arch: CpuArch) -> None:
    """Pack and pad the operand of ``anchor`` if it pays; otherwise change nothing.

    Before -> after, for a 3 x 3 convolution of 7 x 7 on 16 lanes (49 positions become 64)::

        for f, y, x: for c, ky, kx: Y[f, y, x] += W[f, c, ky, kx] * X[c, y + ky, x + kx]

        for c, ky, kx, p: P[c, ky, kx, p] = if p < 49: X[c, p // 7 + ky, p % 7 + kx] else 0
        for f, p: for c, ky, kx: Z[f, p] += W[f, c, ky, kx] * P[c, ky, kx, p]
        for f, y, x: Y[f, y, x] = Z[f, y * 7 + x]
    """
    facts = block_facts(sch, anchor)
    wide = [i for i in facts.spatial if facts.axes[i].extent > 1]
    if not wide or len(facts.reads) != 2:
        return
    vector = wide[-1]
    operands = [r for r in facts.reads if r.strides[vector] != 0]
    if len(operands) != 1 or any(facts.conditional):
        return
    operand = operands[0]
    pad_vector = _should_pad_vector(facts, operand, arch)
    if pad_vector or _should_copy(facts, operand, vector, arch):
        copy = _copy_operand(sch, anchor, operand)
        if pad_vector:
            _pad_vector(sch, anchor, copy, arch)
            return
    _pad_rows(sch, anchor, arch)


def _reuse(facts: BlockFacts, operand: Access) -> int:
    """Return the number of outputs that use one element of the packed operand."""
    return math.prod(facts.axes[i].extent for i in facts.spatial if operand.strides[i] == 0)


def _should_copy(facts: BlockFacts, operand: Access, vector: int, arch: CpuArch) -> bool:
    """Return whether strided loads of ``operand`` cost more than packing it."""
    step = operand.strides[vector]
    if step == 1 or _copied_bytes(facts, operand) > arch.l2_bytes:
        return False
    gathers = step is None or abs(step) > _SHUFFLE_STEP
    return _reuse(facts, operand) >= (_REUSE_GATHER if gathers else _REUSE_SHORT)


def _should_pad_vector(facts: BlockFacts, operand: Access, arch: CpuArch) -> bool:
    """Return whether vectors are too short although all output positions would fill a vector."""
    lanes = arch.lanes(facts.dtype)
    tail = contiguous_tail(facts, facts.spatial)
    if tail is None:
        return False
    share = vector_length(tail.extent, lanes, 1) / lanes
    if share >= _GOOD_USE:
        return False
    used = [i for i in facts.spatial if operand.strides[i] != 0]
    positions = math.prod(facts.axes[i].extent for i in used)
    return (
        positions >= lanes
        and _reuse(facts, operand) >= _REUSE_SHORT * share
        and _copied_bytes(facts, operand) <= 4 * arch.l2_bytes
    )


def _copied_bytes(facts: BlockFacts, operand: Access) -> int:
    used = [a.extent for a, s in zip(facts.axes, operand.strides, strict=True) if s != 0]
    return math.prod(used) * operand.buffer.dtype.itemsize


def _copy_operand(sch: s_tir.Schedule, anchor: SBlockRV, operand: Access) -> SBlockRV:
    """Copy ``operand`` to a buffer with one dimension per axis: batch, reduction, then spatial."""
    block = sch.get(anchor)
    index = next(n for n, r in enumerate(block.reads) if r.source.same_as(operand.buffer))
    copy = sch.reindex(anchor, ("read", index))
    facts = block_facts(sch, copy)
    kinds = [_axis_of(sch, anchor, copy, d) for d in range(len(facts.axes))]
    # Batch axes, shared with the other operand, stay in front.
    shared = [d for d, (axis, is_shared) in enumerate(kinds) if is_shared and not axis.reduce]
    reduced = [d for d, (axis, _) in enumerate(kinds) if axis.reduce]
    order = [*shared, *reduced]
    order += [d for d in range(len(kinds)) if d not in order]

    def permute(*indices: tirx.Var) -> list[tirx.Var]:
        return [indices[d] for d in order]

    index_map = tirx.IndexMap.from_func(permute, ndim=len(order))
    sch.transform_layout(copy, ("write", 0), index_map)
    sch.transform_block_layout(copy, index_map)
    return copy


def _axis_of(
    sch: s_tir.Schedule, anchor: SBlockRV, copy: SBlockRV, dimension: int
) -> tuple[Axis, bool]:
    """Return the anchor's axis of a dimension of the copy, and whether both operands have it."""
    facts = block_facts(sch, anchor)
    buffer = sch.get(copy).writes[0].source
    step = math.prod(int(e) for e in list(buffer.shape)[dimension + 1 :])
    (read,) = (r for r in facts.reads if r.buffer.same_as(buffer))
    (other,) = (r for r in facts.reads if not r.buffer.same_as(buffer))
    for i, axis in enumerate(facts.axes):
        if read.strides[i] == step and axis.extent == int(buffer.shape[dimension]) > 1:
            return axis, other.strides[i] != 0
    return Axis(facts.axes[0].var, 1, False), True  # extent 1: any place is valid


def _pad_vector(sch: s_tir.Schedule, anchor: SBlockRV, copy: SBlockRV, arch: CpuArch) -> None:
    """Collapse the output positions to one axis and zero-pad it to a multiple of the lanes."""
    facts = block_facts(sch, anchor)
    tail = contiguous_tail(facts, facts.spatial)
    assert tail is not None, "_should_pad_vector found one"
    if not sch.get_consumers(anchor):
        sch.cache_write(anchor, 0, "global")
    multiples = [1] * len(facts.axes)
    multiples[tail.axes[0] : tail.axes[-1] + 1] = [arch.lanes(facts.dtype)]
    if len(tail.axes) > 1:
        outputs = collapse_map(facts, tail.axes, len(facts.spatial))
        sch.transform_layout(anchor, ("write", 0), outputs)
        copied = block_facts(sch, copy)
        rank = len(copied.axes)
        wide = sum(facts.axes[i].extent > 1 for i in tail.axes)
        last = collapse_map(copied, range(rank - wide, rank), rank)
        sch.transform_layout(copy, ("write", 0), last)
        sch.transform_block_layout(copy, last)
        collapse_axes(sch, anchor, tail.axes)
    _pad_einsum(sch, anchor, multiples)
    sch.compute_inline(copy)


def _pad_rows(sch: s_tir.Schedule, anchor: SBlockRV, arch: CpuArch) -> None:
    """Pad a row axis without a suitable divisor to a multiple of 8, for example 197 to 200."""
    facts = block_facts(sch, anchor)
    vector = [i for i in facts.spatial if facts.axes[i].extent > 1][-1]
    kept = [r for r in facts.reads if r.strides[vector] != 0]
    rows = [
        i
        for i in facts.spatial
        if facts.axes[i].extent >= _ROW_MULTIPLE
        and all(r.strides[i] == 0 for r in kept)
        and divisors(facts.axes[i].extent, arch.vector_registers * 3 // 4)[-1] < _FEW_ROWS
    ]
    if not rows or facts.axes[vector].extent < _REUSE_SHORT or not is_einsum(sch, anchor):
        return
    if not sch.get_consumers(anchor):
        sch.cache_write(anchor, 0, "global")
    _pad_einsum(sch, anchor, [_ROW_MULTIPLE if i in rows else 1 for i in range(len(facts.axes))])


def _pad_einsum(sch: s_tir.Schedule, anchor: SBlockRV, multiples: list[int]) -> None:
    """Pad the axes of ``anchor`` (pad_einsum); its consumer reads the unpadded part."""
    extents = [axis.extent for axis in block_facts(sch, anchor).axes]
    if all(e % m == 0 for e, m in zip(extents, multiples, strict=True)):
        return
    sch.pad_einsum(anchor, multiples)
    (crop,) = sch.get_consumers(anchor)
    sch.compute_inline(crop)


def is_einsum(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Return whether all buffer indices in the block are plain iterators or constants."""
    body = sch.get(block)
    regions = [*body.reads, *body.writes]
    plain = (tirx.Var, tirx.IntImm)
    return all(isinstance(index.min, plain) for r in regions for index in r.region)
