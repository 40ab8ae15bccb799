"""Row reductions: softmax, layer norm, mean, global pooling, dot products.

The reduced axis is the contiguous one, so its elements fill the vector lanes. Every lane keeps a
partial result (rfactor), and a short loop reduces the lanes at the end. This reorders the
floating-point additions. All blocks are computed at the row loop, while the row is in L1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV
from tvm.tirx import ForKind

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import BlockFacts, all_facts, block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.injective import schedule_injective
from tvmopt.kernels.cpu.common.stage import (
    collapse_axes,
    contiguous_tail,
    divisors,
    inlined_reductions,
    parallelize,
    vector_length,
    vectorize_tail,
    vectorizes_well,
)
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.workload import Refusal

# Minimum row lengths for two and for four vectors of partial results, which hide the latency of the
# adder: in vector registers, and in elements. A layer norm of 384 float32 took 0.8 times as long
# with two (Zen 4, AVX-512).
_LONG_ROW_VECTORS, _LONGEST_ROW_ELEMENTS = 8, 1024
# Minimum row elements per partial result of an argmax: the final lane reduction is scalar.
_FOLD = 16
# Minimum reuse of both operands for a GEMM; below it the outputs are separate dot products.
_MATMUL_USES = 8


def emit(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | Refusal:
    """Schedule ``func``, all reductions of which are row reductions."""
    prepared = inlined_reductions(func)
    if isinstance(prepared, Refusal):
        return prepared
    sch, reductions = prepared
    found = [block_facts(sch, sch.get_sblock(name)) for name in reductions]
    if not all(reduces_rows(facts, hint.arch) for facts in found):
        return Refusal("a reduction is not along a contiguous row")
    stages, rows = _rows(sch, reductions)
    work = sum(f.work for f in all_facts(sch))
    for block in leaf_blocks(sch):
        if not sch.get_loops(block):
            sch.add_unit_loop(block)  # rfactor fails beside a block without loops
    partials = [p for name in reductions for p in _split_into_lanes(sch, name, hint.arch)]
    for name in stages:
        schedule_injective(sch, sch.get_sblock(name), hint)
    _compute_at_rows(sch, stages, rows, partials, work, hint)
    return sch


def reduces_rows(facts: BlockFacts, arch: CpuArch) -> bool:
    """Return whether to vectorise along the reduction rather than along the outputs."""
    outputs = [i for i in facts.spatial if facts.axes[i].extent > 1]
    if outputs and vectorizes_well(facts, outputs[-1]):
        return False
    tail = contiguous_tail(facts, facts.reduction)
    if tail is None or tail.extent * 2 < arch.lanes(facts.dtype):
        return False
    steps = {read.strides[tail.inner] for read in facts.reads}
    return steps <= {0, 1} and 1 in steps and not _is_matmul(facts)


def _is_matmul(facts: BlockFacts) -> bool:
    """Return whether both operands are reused by several outputs, so that packing one is better."""
    reduced = [read for read in facts.reads if any(read.strides[i] for i in facts.reduction)]
    uses = [
        math.prod(facts.axes[i].extent for i in facts.spatial if read.strides[i] == 0)
        for read in reduced
    ]
    return len(uses) == 2 and min(uses) >= _MATMUL_USES


def _rows(sch: s_tir.Schedule, reductions: Sequence[str]) -> tuple[list[str], int]:
    """Find the row axes.

    Returns:
        Names of the blocks that cannot be computed at the row loop: they precede the first
        reduction and have other axes. And the number of leading data-parallel axes that the other
        blocks share.
    """
    blocks = all_facts(sch)
    first = next(n for n, f in enumerate(blocks) if f.name in reductions)
    rows = 0
    for axes in zip(*(f.axes for f in blocks[first:]), strict=False):
        if any(axis.reduce for axis in axes) or len({axis.extent for axis in axes}) > 1:
            break
        rows += 1
    stages: list[str] = []
    for facts in blocks[:first]:
        uses = [
            read.strides[:rows]
            for user in blocks[first:]
            for read in user.reads
            if read.buffer.same_as(facts.write.buffer)
        ]
        if not uses or any(use != facts.write.strides[:rows] for use in uses):
            stages.append(facts.name)
    return stages, rows


def _split_into_lanes(sch: s_tir.Schedule, name: str, arch: CpuArch) -> list[str]:
    """Split a reduction into partial results, one per vector lane, and reduce the lanes by halves.

    Before -> after, for a row of 384 and 16 lanes::

        for i: for k: s[i] += x[i, k]

        for i: for ko in range(24): for ki in T.vectorized(16): p[i, ki] += x[i, ko * 16 + ki]
        for i: for ko in range(2): for ki in T.vectorized(8): q[i, ki] += p[i, ko * 8 + ki]
        ...
        for i: for ki in range(2): s[i] += r[i, ki]

    Returns:
        Names of the blocks that compute ``p``, ``q``, ...; none when the row is too short or has no
        divisor.
    """
    block = sch.get_sblock(name)
    facts = block_facts(sch, block)
    tail = contiguous_tail(facts, facts.reduction)
    if tail is None:
        return []
    length = _partial_results(facts, tail.extent, arch)
    if length < 4 or length == tail.extent:
        return []
    collapse_axes(sch, block, tail.axes)
    partials = [_keep_lanes(sch, name, tail.extent, length)]
    while facts.stores == 1 and length % 4 == 0:
        partials.append(_keep_lanes(sch, name, length, length // 2))
        length //= 2
    return partials


def _keep_lanes(sch: s_tir.Schedule, name: str, extent: int, lanes: int) -> str:
    """Split the last loop, over ``extent``, into partial results (rfactor); return their block."""
    _, lane = sch.split(sch.get_loops(sch.get_sblock(name))[-1], [extent // lanes, lanes])
    partial = sch.rfactor(lane, len(block_facts(sch, sch.get_sblock(name)).write.buffer.shape))
    # rfactor makes the lane the first axis; move it last, because compute_at nests in this order.
    rank = len(sch.get(partial).iter_vars)
    sch.reorder_block_iter_var(partial, [*range(1, rank), 0])
    return sch.get(partial).name_hint


def _partial_results(facts: BlockFacts, extent: int, arch: CpuArch) -> int:
    """Return the number of partial results for a row of ``extent`` elements; 1 if none divides."""
    lanes = arch.lanes(facts.dtype)
    if facts.stores > 1 and facts.dtype != str(facts.reads[0].buffer.dtype):
        # Argmax: each step waits for a comparison and a select.
        return vector_length(extent, lanes, max(1, min(4, extent // (_FOLD * lanes))))
    length = vector_length(extent, lanes, 1)
    if length == lanes:
        wanted = 2 if extent >= _LONG_ROW_VECTORS * lanes else 1
        if extent >= _LONGEST_ROW_ELEMENTS:
            wanted = 4
        length *= divisors(extent // lanes, wanted)[-1]
    return length


def _compute_at_rows(
    sch: s_tir.Schedule,
    stages: list[str],
    rows: int,
    partials: list[str],
    work: int,
    hint: CpuHint,
) -> None:
    """Parallelise the row loop and compute all blocks at it.

    Before -> after::

        for i: max_i;  for i, k: exp_ik;  for i: sum_i;  for i, k: out_ik
        for i in T.parallel(I): { max_i;  for k: exp_ik;  sum_i;  for k: out_ik }
    """
    *others, last = [b for b in leaf_blocks(sch) if sch.get(b).name_hint not in stages]
    depth = 0
    if rows:
        row = sch.fuse(*sch.get_loops(last)[:rows])
        for block in reversed(others):
            sch.compute_at(block, row, preserve_unit_loops=True)
        depth = 1
    inner = [(block, sch.get_loops(block)[depth:]) for block in [*others, last]]
    if rows:
        parallelize(sch, [row], hint, work)
    partial_blocks = []
    for block, loops in inner:
        facts = block_facts(sch, block)
        if facts.name in partials:
            *around, lanes = loops
            partial_blocks.append((block, [*around, *_vectorize_lanes(sch, lanes, facts, hint)]))
        elif not facts.reduction:
            in_row = len(facts.axes) - rows
            vectorize_tail(sch, facts, loops[len(loops) - in_row :], hint)
    # Last, because TVM cannot prove a loop parallel after decompose_reduction of its reduction.
    for block, loops in partial_blocks:
        extents = [int(sch.get(loop).extent) for loop in loops]
        init = sch.decompose_reduction(block, loops[[e > 1 for e in extents].index(True)])
        *around, lanes = sch.get_loops(init)
        if sch.get(loops[-2]).kind == ForKind.UNROLLED:
            sch.unroll(around[-1])
        sch.vectorize(lanes)


def _vectorize_lanes(
    sch: s_tir.Schedule, loop: LoopRV, facts: BlockFacts, hint: CpuHint
) -> list[LoopRV]:
    """Vectorise the partial results by single registers; LLVM keeps no longer array in registers.

    Returns:
        The unrolled loop over registers, if there are several, and the vectorised loop.
    """
    lanes, extent = hint.arch.lanes(facts.dtype), int(sch.get(loop).extent)
    if extent <= lanes or extent % lanes:
        sch.vectorize(loop)
        return [loop]
    registers, vector = sch.split(loop, [extent // lanes, lanes])
    sch.unroll(registers)
    sch.vectorize(vector)
    return [registers, vector]
