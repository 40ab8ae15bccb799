"""Column reductions: softmax over channels, argmax, statistics of a channel.

The innermost axes (pixels in NCHW, channels in NHWC) are not reduced. These *columns* fill the
vector lanes, so no horizontal reduction is needed. All blocks of a function are computed at the
loop over vectors of columns: accumulators stay in registers, intermediate results in the L1 cache.
"""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.ir import Expr
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import BlockFacts, all_facts, block_facts, row_major_offset
from tvmopt.kernels.cpu.common.stage import (
    PARALLEL_WORK,
    collapse_axes,
    contiguous_tail,
    divisors,
    inlined_reductions,
    parallelize,
    vectorizes_well,
)
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.workload import Refusal

# Minimum vector length in elements; shorter vectors do not pay.
_SHORTEST = 4


def emit(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | Refusal:
    """Schedule ``func``, all blocks of which share innermost columns.

    Before -> after, for a softmax over the channels of 19 x 64 x 64::

        for y, x: for c: max[y, x] = max(max[y, x], X[c, y, x])
        for c, y, x: e[c, y, x] = exp(X[c, y, x] - max[y, x])
        for y, x: for c: sum[y, x] += e[c, y, x]
        for c, y, x: Y[c, y, x] = e[c, y, x] / sum[y, x]

        for yx in T.parallel(128):
            for c: for v in T.vectorized(32): max[yx * 32 + v] = ...
            for c: for v in T.vectorized(32): e[c, yx * 32 + v] = ...
            for c: for v in T.vectorized(32): sum[yx * 32 + v] += ...
            for c: for v in T.vectorized(32): Y[c, yx * 32 + v] = ...
    """
    prepared = inlined_reductions(func)
    if isinstance(prepared, Refusal):
        return prepared
    sch, _ = prepared
    blocks = all_facts(sch)
    columns = _shared_columns(blocks)
    if columns == 0:
        return Refusal("its blocks share no contiguous innermost axis that is not reduced")
    length = _vector_length(blocks, columns, hint)
    if length < _SHORTEST:
        return Refusal(f"its columns have no divisor from {_SHORTEST} elements on for a vector")
    for facts in blocks:
        _collapse(sch, facts, columns)
    _run_by_vectors(sch, length, hint)
    return sch


def _shared_columns(blocks: list[BlockFacts]) -> int:
    """Return how many trailing data-parallel axes all blocks share and can collapse to a vector."""
    extents = [[f.axes[i].extent for i in f.spatial] for f in blocks]
    count = min(_columns(facts) for facts in blocks)
    while count and len({tuple(e[-count:]) for e in extents}) > 1:
        count -= 1
    return count if math.prod(extents[-1][len(extents[-1]) - count :]) > 1 else 0


def _columns(facts: BlockFacts) -> int:
    """Return how many trailing data-parallel axes of a block are contiguous in every access."""
    buffer = facts.write.buffer
    if facts.spatial != list(range(len(buffer.shape))):
        return 0
    tail = contiguous_tail(facts, facts.spatial)
    if tail is None or not vectorizes_well(facts, tail.inner):
        return 0
    reduced = [read for read in facts.reads if any(read.strides[i] for i in facts.reduction)]
    if any(read.strides[tail.inner] == 0 for read in reduced):
        return 0  # an operand broadcast over columns: a GEMM, which needs register tiles
    return len(tail.axes)


def _vector_length(blocks: list[BlockFacts], columns: int, hint: CpuHint) -> int:
    """Return the columns per vector: the divisor with the least register work on the busiest core.

    Ties go to the length nearest to half of the maximum, because several buffers must fit.
    """
    last = blocks[-1]
    spatial = [last.axes[i].extent for i in last.spatial]
    extent = math.prod(spatial[-columns:])
    rows = math.prod(spatial[: _shared_rows(blocks, columns)])
    lanes = min(hint.arch.lanes(str(facts.write.buffer.dtype)) for facts in blocks)
    shared = hint.tasks_per_core and sum(facts.work for facts in blocks) >= PARALLEL_WORK
    cores = hint.arch.cores if shared else 1

    def cost(length: int) -> tuple[int, float, int]:
        registers = math.ceil(length / lanes)
        rounds = math.ceil(rows * extent // length / cores)
        return rounds * registers, abs(registers - hint.vector_registers / 2), -length

    return min(divisors(extent, hint.vector_registers * lanes), key=cost)


def _shared_rows(blocks: list[BlockFacts], columns: int) -> int:
    """Return how many leading data-parallel axes, apart from the columns, all blocks share."""
    rows = 0
    for axes in zip(*([f.axes[i] for i in f.spatial[:-columns]] for f in blocks), strict=False):
        if len({axis.extent for axis in axes}) > 1:
            break
        rows += 1
    return rows


def _collapse(sch: s_tir.Schedule, facts: BlockFacts, columns: int) -> None:
    """Collapse the columns to one axis, in the block and in the intermediate buffers it writes.

    Before -> after::

        for y, x: for k: max[y, x] = max(max[y, x], A[k, y, x])
        for yx: for k: max[yx] = max(max[yx], A[k, yx // X, yx % X])
    """
    if columns == 1:
        return
    block = sch.get_sblock(facts.name)
    if facts.name not in {sch.get(b).name_hint for b in sch.get_output_blocks("root")}:
        shape = [int(extent) for extent in facts.write.buffer.shape]
        first = len(shape) - columns

        def flat(*at: tirx.Var) -> list[Expr]:
            return [*at[:first], row_major_offset(at[first:], shape[first:])]

        for store in range(facts.stores):
            layout = tirx.IndexMap.from_func(flat, ndim=len(shape))
            sch.transform_layout(block, ("write", store), layout)
    collapse_axes(sch, block, facts.spatial[-columns:])


def _run_by_vectors(sch: s_tir.Schedule, length: int, hint: CpuHint) -> None:
    """Split the last block's columns into vectors and compute all blocks at that loop."""
    blocks = all_facts(sch)
    rows = _shared_rows(blocks, 1)
    *others, last = [sch.get_sblock(facts.name) for facts in blocks]
    facts = blocks[-1]
    loops = sch.get_loops(last)
    column = facts.spatial[-1]
    around, vector = sch.split(loops[column], [facts.axes[column].extent // length, length])
    head = [*loops[:rows], around]
    sch.reorder(*head, *loops[rows:column], vector)
    for block in reversed(others):
        sch.compute_at(block, around, preserve_unit_loops=True)
    nests = [(block, sch.get_loops(block)[len(head) :]) for block in [*others, last]]
    parallelize(sch, head, hint, sum(f.work for f in blocks))
    reductions = [(block, _vectorize(sch, block, inner)) for block, inner in nests]
    # Last, because TVM cannot prove a loop parallel after decompose_reduction of its reduction.
    for block, outermost in reductions:
        if outermost is not None:
            init = sch.decompose_reduction(block, outermost)
            sch.vectorize(sch.get_loops(init)[-1])


def _vectorize(sch: s_tir.Schedule, block: SBlockRV, loops: list[LoopRV]) -> LoopRV | None:
    """Move the column loop innermost and vectorise it.

    Returns:
        The outermost reduction loop; None when ``block`` is no reduction.
    """
    parallel = len(loops) - len(block_facts(sch, block).reduction)
    *around, vector = loops[:parallel]
    reduction = loops[parallel:]
    sch.reorder(*around, *reduction, vector)
    sch.vectorize(vector)
    return reduction[0] if reduction else None
