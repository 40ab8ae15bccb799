"""Inline everything that can be inlined; find the only elementwise block or reduction then."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import tvm_ffi
from tvm import IRModule, ir, s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import (
    BlockFacts,
    all_facts,
    block_facts,
    leaf_blocks,
)
from tvmopt.kernels.cuda.common.loops import index_map
from tvmopt.kernels.workload import Inlined, Refusal

# Expressions in a block from which on a producer with several uses is not inlined.
_MAX_INLINED_SIZE = 300


def inline_all(sch: s_tir.Schedule, kept: Collection[str] = ()) -> None:
    """Inline every block that is neither a reduction nor an output into its consumers.

    A producer with several uses is recomputed: registers and arithmetic cost less than memory here.
    A block stays where TVM rejects inlining, where the expression would grow without bound, or
    where ``kept`` names it.
    """
    # Twice, because an expression may be short once the indices of reshapes are simplified.
    for _ in range(2):
        _inline_once(sch, kept)
        for block in leaf_blocks(sch):
            _simplify(sch, block)


def _inline_once(sch: s_tir.Schedule, kept: Collection[str]) -> None:
    """Inline each block once, in program order."""
    stay = {sch.get(b).name_hint for b in sch.get_output_blocks("root")} | set(kept)
    for block in leaf_blocks(sch):
        if sch.get(block).name_hint in stay:
            continue
        facts = block_facts(sch, block)
        consumers = [block_facts(sch, c) for c in sch.get_consumers(block)]
        if facts.reduction or not consumers:
            continue
        uses = sum(r.buffer.same_as(facts.write.buffer) for c in consumers for r in c.reads)
        moves = len(facts.reads) == 1 and not any(facts.conditional) and not facts.calls
        size = max(c.size for c in consumers) + uses * facts.size
        if uses > 1 and not moves and size > _MAX_INLINED_SIZE:
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue


def _simplify(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Simplify the indices of ``block`` after a reshape was inlined.

    TVM does not recognise two forms of one index as equal, and then allocates thread-local
    registers for the whole range between them.

    Before -> after, for 32 images::

        Y[i, j, k] = X[((j * 32 + k) // 384 + i) % 32, (j * 32 + k) % 384]
        Y[i, j, k] = X[i, j * 32 + k]
    """
    divisions: list[ir.Expr] = []

    def on_load(load: ir.TensorLoad) -> None:
        for index in load.indices:
            kinds = (tirx.FloorDiv, tirx.FloorMod)
            tvm_ffi.structural_walk(index, (kinds, divisions.append), order="post")

    tvm_ffi.structural_walk(sch.get(block).body, (ir.TensorLoad, on_load), order="post")
    if divisions:
        # An identity map: TVM rewrites the indices and simplifies them with the axes' extents.
        sch.transform_block_layout(block, index_map(sch, block, lambda *axes: list(axes)))


def inlined(func: tirx.PrimFunc) -> Inlined | Refusal:
    """Return the facts of ``func`` after inlining."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    return Inlined.of(sch)


def inlined_elementwise(func: tirx.PrimFunc) -> s_tir.Schedule | Refusal:
    """Return a schedule of an elementwise function with everything inlined."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    if any(block_facts(sch, block).reduction for block in leaf_blocks(sch)):
        return Refusal("it has a reduction")
    inline_all(sch)
    return sch


def one_elementwise_block(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, SBlockRV] | Refusal:
    """Return the schedule of :func:`inlined_elementwise` and its block, if there is only one."""
    sch = inlined_elementwise(func)
    if isinstance(sch, Refusal):
        return sch
    blocks = leaf_blocks(sch)
    return (sch, blocks[0]) if len(blocks) == 1 else Refusal("several blocks cannot be inlined")


def one_reduction(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, BlockFacts] | Refusal:
    """Return an inlined schedule of ``func`` and the facts of its :func:`only_reduction`."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    facts = only_reduction(sch, all_facts(sch))
    return facts if isinstance(facts, Refusal) else (sch, facts)


def only_reduction(sch: s_tir.Schedule, blocks: Sequence[BlockFacts]) -> BlockFacts | Refusal:
    """Return the only reduction of ``blocks``.

    Refused are several reductions, several blocks after the reduction, and an epilogue of another
    shape than the reduction's output.

    Args:
        sch: A schedule in which everything is inlined.
        blocks: Facts of its blocks.
    """
    found = [f for f in blocks if f.reduction]
    last = output_block(sch)
    if len(found) != 1 or found[0].stores != 1:
        return Refusal("not one reduction of one value")
    if last is None or len(blocks) > 2:
        return Refusal("several blocks follow its reduction")
    final = block_facts(sch, last)
    if not final.reduction and final.work != spatial_extent(found[0]):
        return Refusal("its epilogue has another shape than its reduction")
    return found[0]


def output_block(sch: s_tir.Schedule) -> SBlockRV | None:
    """Return the block that writes the only output; None when there are several outputs."""
    blocks = sch.get_output_blocks("root")
    return blocks[0] if len(blocks) == 1 else None


def spatial_extent(facts: BlockFacts) -> int:
    """Return the number of output elements."""
    return math.prod(a.extent for a in facts.axes if not a.reduce)
