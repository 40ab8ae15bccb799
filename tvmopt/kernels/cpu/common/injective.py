"""Schedule one injective block at the root: parallel outer loops, vectorised inner loop."""

from __future__ import annotations

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import BlockFacts, block_facts
from tvmopt.kernels.cpu.common.stage import parallelize, vectorize_tail
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.passes.index_tables import schedule_interpolation
from tvmopt.kernels.cpu.passes.split_conditions import schedule_between_conditions
from tvmopt.kernels.cpu.passes.transpose import schedule_transpose


def schedule_injective(
    sch: s_tir.Schedule, block: SBlockRV, hint: CpuHint, cut: bool = False
) -> None:
    """Schedule a root-level block: parallel outer loops, vectorised inner loop.

    Before -> after, for ``B[c, y, x] = max(A[c, y, x], 0)`` of 64 x 28 x 28::

        for c, y, x: B[c, y, x] = ...
        for c in T.parallel(64): for yx in range(14): for v in T.vectorized(56): ...

    Args:
        sch: The schedule.
        block: The block.
        hint: Supplies the CPU, the tasks per core and the vector length.
        cut: Whether the block may be split into several blocks with new names.
    """
    facts = block_facts(sch, block)
    loops = sch.get_loops(block)
    padded = _first_padded_axis(facts)
    if padded is not None and sch.can_decompose_padding(block, loops[padded]):
        _schedule_padding(sch, block, padded, hint)
        return
    if cut and (
        schedule_between_conditions(sch, block, hint) or schedule_interpolation(sch, block, hint)
    ):
        return
    if schedule_transpose(sch, block, hint, cut):
        return
    facts = block_facts(sch, block)
    loops = sch.get_loops(block)
    parallelize(sch, vectorize_tail(sch, facts, loops, hint), hint, facts.work)


def _first_padded_axis(facts: BlockFacts) -> int | None:
    """Return the first axis in the padding condition; None unless an outer loop is left.

    Without an outer loop to parallelise, a large block gains more from threads than from vectors.
    """
    if not any(facts.conditional):
        return None
    first = facts.conditional.index(True)
    return first if any(axis.extent > 1 for axis in facts.axes[:first]) else None


def _schedule_padding(sch: s_tir.Schedule, block: SBlockRV, padded: int, hint: CpuHint) -> None:
    """Decompose padding: fill with the padding value, then copy the interior; both vectorise.

    Before -> after::

        for c, y, x: P[c, y, x] = if_then_else(inside(y, x), A[c, y - 1, x - 1], 0)

        for c in T.parallel(C):
            for y: for x in T.vectorized(W + 2): P[c, y, x] = 0
            for y: for x in T.vectorized(W): P[c, y + 1, x + 1] = A[c, y, x]
    """
    facts = block_facts(sch, block)
    loops = sch.get_loops(block)
    inner = len(loops) - padded
    parallelize(sch, loops[:padded], hint, facts.work)
    fill = sch.decompose_padding(block, loops[padded])
    for part in (fill, block):
        vectorize_tail(sch, block_facts(sch, part), sch.get_loops(part)[-inner:], hint)
