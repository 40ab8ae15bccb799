"""Functions without reduction: one pass over the result, by vectors."""

from __future__ import annotations

from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.schedule.analysis import block_facts, leaf_blocks

from .base import GpuTemplate
from .hint import GpuHint
from .steps import (
    cache_reads,
    cache_result,
    fuse_all,
    inline_all,
    load_at,
    moves_by_vectors,
    split_vector,
    store_at,
)


class GpuElementwise(GpuTemplate):
    """Every thread makes a few vectors of the result; all else is inlined into it."""

    name = "gpu_elementwise"

    def apply(self, func: tirx.PrimFunc, hint: GpuHint) -> s_tir.Schedule | None:
        """Schedule ``func``, or None when it holds a reduction.

        Before -> after, with vectors of 8 and 4 of them a thread::

            for i, j: T[i, j] = ...
            for i, j: Y[i, j] = f(T[i, j])

            for b in blockIdx.x, u in unroll(4), t in threadIdx.x:
                for v in vectorized(8): X_local[v] = X[...]
                for v in range(8): Y_local[v] = f(X_local[v])
                for v in vectorized(8): Y[...] = Y_local[v]
        """
        sch = s_tir.Schedule(IRModule({"main": func}))
        if any(block_facts(sch, block).reduction for block in leaf_blocks(sch)):
            return None
        inline_all(sch)
        for block in leaf_blocks(sch):
            schedule_elementwise(sch, block, hint)
        return sch


def schedule_elementwise(sch: s_tir.Schedule, block: SBlockRV, hint: GpuHint) -> None:
    """Make a kernel of one root-level block without reduction."""
    facts = block_facts(sch, block)
    inner = max((i for i, a in enumerate(facts.axes) if a.extent > 1), default=0)
    work = facts.work
    vector = hint.vector if work % hint.vector == 0 else 1
    exact = bool(facts.axes) and facts.axes[inner].extent % vector == 0
    registers = exact and not hint.option("direct") and moves_by_vectors(
        facts, facts.write, inner, vector
    )
    copies = cache_reads(sch, block, inner, vector) if registers else []
    result = cache_result(sch, block, vector) if registers else None
    loops = sch.get_loops(block) or [sch.add_unit_loop(block)]
    if exact:
        pieces, lane = split_vector(sch, loops, vector)
    else:
        pieces, lane = sch.split(fuse_all(sch, loops), [work // vector, vector])
    threads = hint.thread[0] if hint.thread else 256
    unroll = max(1, hint.option("unroll", 1))
    grid, step, thread = sch.split(pieces, [None, unroll, threads])
    sch.bind(grid, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if unroll > 1:
        sch.unroll(step)
    if result is not None:
        load_at(sch, copies, thread)
        store_at(sch, result, thread)
        sch.unroll(lane)
    elif vector > 1:
        sch.vectorize(lane)
