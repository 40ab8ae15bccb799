"""Injective functions: elementwise chains and data movement.

Transpose, concat, pad, resize, slice, gather, cast and arithmetic chains become one pass over the
output. All blocks are inlined into the last one; its contiguous inner axes are vectorised and its
outer axes are parallelised.
"""

from __future__ import annotations

from tvm import IRModule, s_tir, tirx

from tvmopt.kernels.analysis import block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.injective import schedule_injective
from tvmopt.kernels.cpu.common.stage import inline_injective
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.passes.staged_transpose import schedule_staged_transpose
from tvmopt.kernels.workload import Refusal

REDUCES = Refusal("it has a reduction")


def emit(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | Refusal:
    """Schedule one pass over the output."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    if any(block_facts(sch, block).reduction for block in leaf_blocks(sch)):
        return REDUCES
    staged = schedule_staged_transpose(func, hint)
    if staged is not None:
        return staged
    inline_injective(sch)
    for block in leaf_blocks(sch):
        schedule_injective(sch, block, hint, cut=True)
    return sch
