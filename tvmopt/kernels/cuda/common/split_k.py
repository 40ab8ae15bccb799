"""Split-K through workspace: rfactor the reduction, and schedule the split-K reduction kernel."""

from __future__ import annotations

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.cuda.common.gemm_inlining import inline_forward, inline_other_producers


def split_k_reduction(
    sch: s_tir.Schedule, anchor: SBlockRV, parts: int
) -> tuple[SBlockRV, SBlockRV]:
    """Split the K loop into ``parts`` partial GEMMs and a reduction of their results.

    Before -> after::

        for s, i, j: for k: C[s, i, j] += A[s, i, k] * B[s, j, k]

        for p, s, i, j: for k: P[p, s, i, j] += A[s, i, p * K / 4 + k] * B[s, j, p * K / 4 + k]
        for s, i, j: for p: C[s, i, j] += P[p, s, i, j]

    Args:
        sch: The schedule.
        anchor: The GEMM block, with loops ``s, i, j, k``; ``parts`` divides the extent of ``k``.
        parts: Split-K factor, at least 2.

    Returns:
        The block of the partial GEMMs, with loops ``p, s, i, j, k``, and the reduction block.
    """
    *others, k = sch.get_loops(anchor)
    part, rest = sch.split(k, [parts, None])
    sch.reorder(part, *others, rest)
    return sch.rfactor(part, 0), anchor


def schedule_split_k_reduction(
    sch: s_tir.Schedule, total: SBlockRV, vector: int, threads: int = 256
) -> None:
    """Schedule the split-K reduction with its epilogue as a separate kernel.

    Args:
        sch: The schedule.
        total: The reduction block.
        vector: Output elements of a thread.
        threads: Threads of a block.
    """
    while True:
        consumers = sch.get_consumers(total)
        if not any(sch.get_consumers(consumer) for consumer in consumers):
            break
        for consumer in consumers:
            inline_other_producers(sch, consumer, total)
        if not inline_forward(sch, consumers):
            break
    (output,) = sch.get_consumers(total)
    inline_other_producers(sch, output, total)
    *rows, columns = sch.get_loops(output)
    width = int(sch.get(columns).extent)
    vector = math.gcd(width, vector)
    across = _share(width // vector, threads)
    outer, lane, inner = sch.split(columns, [None, across, vector])
    lanes = [lane]
    if rows:
        down = _divisor(int(sch.get(rows[-1]).extent), threads // across)
        rows[-1], row = sch.split(rows[-1], [None, down])
        lanes.insert(0, row)
        sch.reorder(*rows, outer, row, lane, inner)
    sch.bind(sch.fuse(*rows, outer), "blockIdx.x")
    thread = sch.fuse(*lanes)
    sch.bind(thread, "threadIdx.x")
    sch.set_scope(total, 0, "local")
    sch.compute_at(total, thread, preserve_unit_loops=True)
    iters = sch.get(total).iter_vars
    loops = sch.get_loops(total)[-len(iters) :]
    reduced = [iv.iter_type == tirx.IterVar.CommReduce for iv in iters]
    part = loops[reduced.index(True)]
    last = [loop for loop, is_reduced in zip(loops, reduced, strict=True) if not is_reduced][-1]
    sch.reorder(part, last)
    if vector > 1:
        # Before decompose_reduction: after it, TVM proves no loop of the block parallel.
        sch.vectorize(inner)
        sch.vectorize(last)
    init = sch.decompose_reduction(total, part)
    if vector > 1:
        sch.vectorize(sch.get_loops(init)[-1])


def _divisor(number: int, most: int) -> int:
    """Return the largest divisor of ``number`` that is at most ``most``."""
    return max(d for d in range(1, max(1, most) + 1) if number % d == 0)


def _share(number: int, most: int) -> int:
    """Return how many of ``number`` elements a block's threads take, at most ``most``.

    It is a divisor if there is one of some size: other tile sizes need bounds checks.
    """
    divisor = _divisor(number, most)
    return divisor if divisor * 4 >= min(number, most) else min(number, most)
