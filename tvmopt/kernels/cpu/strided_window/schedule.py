"""Pooling with a stride along the vector axis: NCHW, stride 2.

Neighbouring outputs read every second input, for which there is no vector load. The schedule copies
a tile of input rows, with padding, and deinterleaves even and odd columns (*phases*). Each tap of
the window then reads with unit stride. The copy stays in L1 and costs one shuffle per vector.
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts
from tvmopt.kernels.cpu.common.nest import find_epilogue, only_reduction, schedule_rest, unit_loops
from tvmopt.kernels.cpu.common.stage import divisors, parallelize, vector_length
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.workload import Refusal

# Maximum unrolled taps; maximum stride between the windows of neighbouring outputs.
_MOST_TAPS, _MOST_STEP = 64, 4
# Bytes of a tile of input rows, about a third of L1.
_TILE_BYTES = 16 * 1024


def emit(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | Refusal:
    """Schedule ``func``, one reduction over overlapping strided windows.

    Before -> after, for 3 x 3 with stride 2, padded by 1::

        for c, y, x: P[c, y, x] = if_then_else(inside(y, x), X[c, y - 1, x - 1], -inf)
        for c, y, x: for ky, kx: Y[c, y, x] = max(Y[c, y, x], P[c, 2 * y + ky, 2 * x + kx])

        for c, yo in T.parallel(...):
            for y: for ph: for x in T.vectorized(57): P[c, y, ph, x] = -inf
            for y: for xo:
                for v in T.vectorized(32): row[v] = X[c, y - 1, xo * 32 + v]
                for ph in T.unroll(2): for v in T.vectorized(16):
                    P[c, y, 1 - ph, xo * 16 + v + ph] = row[2 * v + ph]
            for y, xo: for ky, kx in T.unroll(9): for v in T.vectorized(56):
                Y[...] = max(Y[...], P[c, 2 * y + ky, kx % 2, xo * 56 + v + kx // 2])
    """
    found = only_reduction(func)
    if isinstance(found, Refusal):
        return found
    sch, anchor = found
    facts = block_facts(sch, anchor)
    step, lanes = _step(facts), hint.arch.lanes(facts.dtype)
    if step == 0:
        return Refusal("its reduction is not over overlapping windows at a small stride")
    rows, columns = facts.spatial[-2:]
    width = vector_length(facts.axes[columns].extent, lanes, hint.vector_registers)
    if width < 4:
        return Refusal("its columns have no divisor from 4 elements on for a vector")
    epilogue = find_epilogue(sch, anchor)
    data = _data(sch, anchor)
    if data is None:
        return Refusal("its data is more than padded")
    loops = sch.get_loops(anchor)
    row, in_tile = sch.split(loops[rows], [None, _row_tile(facts)])
    column, vector = sch.split(loops[columns], [None, width])
    head = [*unit_loops(facts, loops), *(loops[i] for i in facts.spatial[:-2]), row]
    taps = [loops[i] for i in facts.reduction]
    sch.reorder(*head, in_tile, column, *taps, vector)
    sch.reverse_compute_at(epilogue, column, preserve_unit_loops=True)
    sch.compute_at(data, row, preserve_unit_loops=True)
    if not _sort_columns(sch, data, step, lanes):
        return Refusal("its input rows cannot be split into vectors")
    if block_facts(sch, anchor).reads[0].strides[columns] != 1:
        return Refusal("its columns are not a dimension of their own")
    sch.vectorize(sch.get_loops(epilogue)[-1])
    sch.vectorize(vector)
    for tap in taps:
        sch.unroll(tap)
    parallelize(sch, head, hint, facts.work)
    # Last, because TVM cannot prove a loop parallel after decompose_reduction of its reduction.
    init = sch.decompose_reduction(anchor, taps[0])
    sch.vectorize(sch.get_loops(init)[-1])
    schedule_rest(sch, hint)
    return sch


def _step(facts: BlockFacts) -> int:
    """Return the stride of the windows in columns; 0 if there is none.

    Windows without overlap do not fit: LLVM reads each of their columns once anyway.
    """
    if len(facts.spatial) < 2 or len(facts.reads) != 1 or facts.reduced > _MOST_TAPS:
        return 0
    [read], vector = facts.reads, facts.spatial[-1]
    step, length = read.strides[vector] or 0, _row_length(read)
    if facts.divides or any(facts.conditional) or facts.write.strides[vector] != 1:
        return 0
    if not 2 <= step <= _MOST_STEP or step >= length:
        return 0
    moves = [(facts.axes[i].extent - 1) * (read.strides[i] or 0) for i in facts.reduction]
    return step if 1 + sum(move for move in moves if move < length) > step else 0


def _row_length(read: Access) -> int:
    return int(read.buffer.shape[-1])


def _row_tile(facts: BlockFacts) -> int:
    """Return the output rows of a tile whose input rows fit ``_TILE_BYTES``."""
    [read], rows = facts.reads, facts.spatial[-2]
    length = _row_length(read)
    row = length * read.buffer.dtype.itemsize
    moves = [(facts.axes[i].extent - 1) * (read.strides[i] or 0) // length for i in facts.reduction]
    step = max(1, (read.strides[rows] or 0) // length)
    most = (_TILE_BYTES // row - 1 - sum(moves)) // step + 1
    return divisors(facts.axes[rows].extent, max(1, most))[-1]


def _data(sch: s_tir.Schedule, anchor: SBlockRV) -> SBlockRV | None:
    """Return the block that pads the data, or a new cache_read copy; None if it cannot be split."""
    for producer in sch.get_producers(anchor):
        facts = block_facts(sch, producer)
        if any(facts.conditional):
            outer = sch.get_loops(producer)[-2]
            alone = len(facts.reads) == 1 and facts.write.buffer.dtype == _dtype(facts)
            return producer if alone and sch.can_decompose_padding(producer, outer) else None
    return sch.cache_read(anchor, 0, "global")


def _dtype(facts: BlockFacts) -> str:
    return str(facts.reads[0].buffer.dtype)


def _sort_columns(sch: s_tir.Schedule, data: SBlockRV, step: int, lanes: int) -> bool:
    """Deinterleave the columns of the buffer that ``data`` writes by phase, and vectorise the copy.

    Returns:
        Whether the rows can be split into vectors.
    """
    facts = block_facts(sch, data)

    def sort(*at: tirx.Var) -> list[Expr]:
        return [*at[:-1], at[-1] % step, at[-1] // step]

    rank = len(facts.write.buffer.shape)
    layout = tirx.IndexMap.from_func(sort, ndim=rank)
    # The layout pads the columns to a multiple of the stride; the padding is never read.
    sch.transform_layout(data, ("write", 0), layout, assume_injective_transform=True)
    if any(facts.conditional):
        fill = sch.decompose_padding(data, sch.get_loops(data)[-2])
        along, phase = sch.split(sch.get_loops(fill)[-1], [None, step], disable_predication=True)
        sch.reorder(phase, along)
        sch.vectorize(along)
    loop = sch.get_loops(data)[-1]
    extent = int(sch.get(loop).extent)
    each = math.ceil(extent / step)
    is_padded = each * step != extent
    # A one-register shuffle costs half of a two-register shuffle.
    length = vector_length(each, lanes // step, 1)
    if length * 2 <= lanes // step:
        length = vector_length(each, lanes)
    if length < 4 or each * step > block_facts(sch, data).axes[-1].extent:
        return False
    # Without predicates the copy may include existing columns that no window reads.
    split = sch.split(loop, [each // length, length, step], disable_predication=is_padded)
    around, lane, phase = split
    row = sch.cache_read(data, 0, "local")
    sch.compute_at(row, around, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(row)[-1])
    sch.reorder(phase, lane)
    sch.unroll(phase)
    sch.vectorize(lane)
    return True
