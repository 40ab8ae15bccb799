"""Fallback for any function of leaf blocks: parallelise and vectorise each block separately.

Nothing is inlined or moved, so the schedule uses only primitives that TVM can always verify. If a
primitive fails on a block, the block keeps its serial loops.
"""

from __future__ import annotations

from tvm import IRModule, s_tir, tirx
from tvm.error import InternalError
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.injective import schedule_injective
from tvmopt.kernels.cpu.common.stage import parallelize, vector_length, vectorizes_well
from tvmopt.kernels.cpu.hint import CpuHint


def emit(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule:
    """Schedule each block of ``func`` as far as TVM's primitives allow."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    for name in [sch.get(block).name_hint for block in leaf_blocks(sch)]:
        attempt = sch.copy()
        try:
            _schedule_block(attempt, attempt.get_sblock(name), hint)
        except (ScheduleError, InternalError):
            continue
        sch = attempt
    return sch


def _schedule_block(sch: s_tir.Schedule, block: SBlockRV, hint: CpuHint) -> None:
    """Order the loops of a block: data-parallel, reduction, vector; parallelise the outermost.

    Before -> after::

        for i, j: for k: C[i, j] += ...
        for i in T.parallel(I): for j0: init C; for k: for j1 in T.vectorized(16): C[...] += ...
    """
    facts = block_facts(sch, block)
    if not facts.reduction:
        schedule_injective(sch, block, hint)
        return
    loops = sch.get_loops(block)
    spatial = [loops[i] for i in facts.spatial]
    reduction = [loops[i] for i in facts.reduction]
    if not spatial:
        return
    inner = facts.spatial[-1]
    length = 1
    if facts.stores == 1 and vectorizes_well(facts, inner):
        length = vector_length(facts.axes[inner].extent, hint.arch.lanes(facts.dtype))
    if length > 1:
        rest, vector = sch.split(spatial[-1], [facts.axes[inner].extent // length, length])
        spatial = [*spatial[:-1], rest]
        sch.reorder(*spatial, *reduction, vector)
        init = sch.decompose_reduction(block, reduction[0])
        sch.vectorize(sch.get_loops(init)[-1])
        sch.vectorize(vector)
    else:
        sch.reorder(*spatial, *reduction)
    parallelize(sch, spatial, hint, facts.work)
