"""Vector loads and stores through registers: which accesses allow them, and their blocks."""

from __future__ import annotations

from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, sym, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.analysis import (
    Access,
    BlockFacts,
    block_facts,
    substitute,
)
from tvmopt.kernels.cuda.common.loops import index_map

#: Bytes of the widest vector that TVM can generate in CUDA, for any dtype.
WIDEST_VECTOR = 32
# Bytes of the widest vector of 1- and 2-byte elements; most lanes of a bool vector in arithmetic.
_WIDEST_NARROW, _MOST_BOOLS = 16, 4


def widest(facts: BlockFacts) -> int:
    """Return the bytes of the widest element that the block reads or writes."""
    buffers = [facts.write.buffer, *(r.buffer for r in facts.reads)]
    return max(int(b.dtype.itemsize) for b in buffers)


def most_lanes(dtype: object) -> int:
    """Return the most elements of ``dtype`` in a vector load or store of TVM; a power of two.

    It is 1 for bool: TVM generates ``ushort4``, 8 bytes, for a vector of four.
    """
    if str(dtype) == "bool":
        return 1
    size = itemsize(str(dtype))
    return int((_WIDEST_NARROW if size <= 2 else WIDEST_VECTOR) / size)


def lanes_of(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """Return the most lanes of a vectorised loop around ``block``, as far as dtypes limit them."""
    facts = block_facts(sch, block)
    lanes = min(most_lanes(a.buffer.dtype) for a in (facts.write, *facts.reads))

    def on_expr(expr: ir.Expr) -> None:
        nonlocal lanes
        if str(getattr(expr.ty, "dtype", "")) == "bool" and _loads(expr):
            lanes = min(lanes, _MOST_BOOLS)  # a bool of indices only is the same in all lanes

    tvm_ffi.structural_walk(sch.get(block).body, (ir.Expr, on_expr), order="post")
    return lanes


def _loads(expr: ir.Expr) -> bool:
    """Whether ``expr`` loads from memory."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return bool(found)


def moves_by_vectors(facts: BlockFacts, access: Access, inner: int, vector: int) -> bool:
    """Whether ``vector`` steps of axis ``inner`` are one aligned vector of a buffer's last axis."""
    if vector == 1 or access.strides[inner] != 1 or not len(access.buffer.shape):
        return False
    if vector > most_lanes(access.buffer.dtype):
        return False
    if int(access.buffer.shape[-1]) % vector or facts.axes[inner].extent % vector:
        return False
    for i, (axis, stride) in enumerate(zip(facts.axes, access.strides, strict=True)):
        if i != inner and axis.extent > 1 and (stride is None or stride % vector):
            return False
    return starts_aligned(facts, access, vector)


def starts_aligned(facts: BlockFacts, access: Access, vector: int) -> bool:
    """Whether the first element of ``access`` has an offset that is a multiple of ``vector``."""
    zeros = {a.var: tirx.IntImm(str(a.var.ty.dtype), 0) for a in facts.axes}
    start = substitute(access.offset, zeros)
    start = sym.Analyzer().simplify(start)
    return isinstance(start, tirx.IntImm) and int(start) % vector == 0


def in_pieces(sch: s_tir.Schedule, block: SBlockRV, axis: int, vector: int) -> tirx.IndexMap:
    """Return the map that moves ``axis`` of ``block`` last, split by ``vector``; -1 is the last."""

    def pieces(*indices: tirx.Var) -> list[ir.Expr]:
        others = [index for place, index in enumerate(indices) if place != axis % len(indices)]
        return [*others, indices[axis] // vector, indices[axis] % vector]

    return index_map(sch, block, pieces)


def cache_reads(sch: s_tir.Schedule, block: SBlockRV, inner: int, vector: int) -> list[SBlockRV]:
    """Make ``block`` read from registers that are loaded in vectors of ``vector`` elements.

    Call this while the block and its producers still have separate loop nests; then
    :func:`load_at` moves the loads to their place.

    Args:
        sch: The schedule.
        block: The block.
        inner: Index of the axis along which the vectors lie.
        vector: Elements of a load.

    Returns:
        The blocks that load.
    """
    if vector == 1:
        return []
    facts = block_facts(sch, block)
    if any(facts.conditional):
        return []
    wanted: list[Access] = []
    for read in facts.reads:
        if read.buffer.scope() == "local" or not moves_by_vectors(facts, read, inner, vector):
            continue
        same = [other for other in facts.reads if other.buffer.same_as(read.buffer)]
        if any(not _equal(other.offset, read.offset) for other in same):
            continue
        if not any(read.buffer.same_as(other.buffer) for other in wanted):
            wanted.append(read)
    copies = []
    for read in wanted:
        regions = sch.get(block).reads
        index = next(n for n, r in enumerate(regions) if r.source.same_as(read.buffer))
        copy = sch.cache_read(block, index, "local", consumer_blocks=[block])
        divided = in_pieces(sch, copy, -1, vector)
        sch.transform_block_layout(copy, divided)
        sch.transform_layout(copy, ("write", 0), divided)
        copies.append(copy)
    return copies


def load_at(sch: s_tir.Schedule, copies: Sequence[SBlockRV], loop: LoopRV) -> None:
    """Move the loads of :func:`cache_reads` into ``loop``, vectorised."""
    for copy in copies:
        sch.compute_at(copy, loop, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(copy)[-1])


def cache_result(sch: s_tir.Schedule, block: SBlockRV, vector: int) -> SBlockRV:
    """Make ``block`` write to registers, which are stored in vectors of ``vector`` elements.

    Call this while the block has a separate loop nest; then :func:`store_at` moves the stores to
    their place.

    Returns:
        The block that stores.
    """
    copy = sch.cache_write(block, 0, "local")
    divided = in_pieces(sch, copy, -1, vector)
    sch.transform_block_layout(copy, divided)
    sch.transform_layout(block, ("write", 0), divided)
    return copy


def cache_result_along(sch: s_tir.Schedule, block: SBlockRV, axis: int, vector: int) -> SBlockRV:
    """Like :func:`cache_result`, with registers laid out as the axes of ``block``, ``axis`` last.

    For blocks with other axes than their output. For a 4-D output indexed by quotients, TVM would
    not find that a thread needs only a few elements.
    """
    divided = in_pieces(sch, block, axis, vector)
    copy = sch.reindex_cache_write(block, 0, "local", divided)
    sch.transform_block_layout(copy, divided)
    return copy


def store_at(sch: s_tir.Schedule, copy: SBlockRV, loop: LoopRV) -> None:
    """Move the stores of :func:`cache_result` into ``loop``, vectorised."""
    sch.reverse_compute_at(copy, loop, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(copy)[-1])


def _equal(a: ir.Expr, b: ir.Expr) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))
