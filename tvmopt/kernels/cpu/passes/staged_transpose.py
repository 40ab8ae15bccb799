"""Arithmetic before a transpose to few channels: stage one row, then interleave it.

An image in NCHW that becomes narrow and NHWC (``cast -> transpose -> pad``) has 3 or 4 channels
innermost. One pass over the output computes a channel at a time, since neither its loads nor its
innermost loop fill a vector. With a row staged, the arithmetic is vectorised along the source's
contiguous axis, and what is left only moves narrow values, which LLVM turns into shuffles.
"""

from __future__ import annotations

import dataclasses
import itertools

from tvm import IRModule, ir, s_tir, tirx

from tvmopt.kernels.analysis import block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.stage import inline_injective, parallelize, vectorize_tail
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.intrinsics.calls import called
from tvmopt.kernels.cpu.passes.split_conditions import condition_changes

# Largest extent of the innermost axis of the result. LLVM interleaves up to 4 vectors.
_MOST_CHANNELS = 4
# Minimum extent of the vectorised axis.
_SHORTEST_ROW = 8


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Names of the last block with arithmetic, and of the block that stores the result."""

    staged: str
    stored: str


def schedule_staged_transpose(func: tirx.PrimFunc, hint: CpuHint) -> s_tir.Schedule | None:
    """Schedule arithmetic, a transpose and possibly a pad, if ``func`` is that.

    Before -> after, for ``B[y, x, c] = inside(y, x, c) ? narrow(A[c, y - 1, x - 1]) : 0``::

        for y, x, c: B[y, x, c] = if inside(y, x, c): narrow(A[c, y - 1, x - 1]) else 0

        for y in T.parallel(Y):
            for c: for x in T.vectorized(X): S[c, x] = narrow(A[c, y - 1, x])
            for x in 0, range(1, X + 1), X + 1: for c in T.unroll(4): B[y, x, c] = S[c, x - 1]

    Args:
        func: A function without reductions.
        hint: Supplies the CPU and the tasks per core; nothing is done with
            ``hint.vector_registers`` below 2.

    Returns:
        The schedule; None where the plain loop is as good.
    """
    found = _find(func) if hint.vector_registers >= 2 else None
    if found is None:
        return None
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_injective(sch, kept=(found.staged,))
    if [sch.get(block).name_hint for block in leaf_blocks(sch)] != [found.staged, found.stored]:
        return None
    staged, stored = leaf_blocks(sch)
    if not _interleaves(sch, staged, stored):
        return None
    *outer, _, _ = sch.get_loops(stored)
    parallelize(sch, outer, hint, block_facts(sch, stored).work)
    *outer, row, channel = sch.get_loops(stored)
    sch.compute_at(staged, outer[-1])
    inner = sch.get_loops(staged)[-1:]
    vectorize_tail(sch, block_facts(sch, staged), inner, hint)
    sch.unroll(channel)
    facts = block_facts(sch, stored)
    changes = condition_changes(sch.get(stored), facts.axes[-2])
    if changes:
        ends = [0, *changes, facts.axes[-2].extent]
        sizes = [end - start for start, end in itertools.pairwise(ends)]
        sch.loop_partition(row, sizes[:-1])
    return sch


def _find(func: tirx.PrimFunc) -> _Blocks | None:
    """Return the two blocks of a chain: arithmetic, then at least one block that only moves."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    blocks = leaf_blocks(sch)
    if len(blocks) < 2 or any(len(sch.get_consumers(block)) != 1 for block in blocks[:-1]):
        return None
    moves = 0
    while moves < len(blocks) and _moves(sch.get(blocks[-1 - moves])):
        moves += 1
    if moves in (0, len(blocks)):
        return None
    return _Blocks(sch.get(blocks[-1 - moves]).name_hint, sch.get(blocks[-1]).name_hint)


def _moves(block: s_tir.SBlock) -> bool:
    """Return whether a block stores a loaded value, or a constant outside of a condition."""
    if not isinstance(block.body, tirx.BufferStore):
        return False
    value = block.body.value
    if isinstance(value, ir.Call) and called(value) == "if_then_else":
        _, value, other = value.args
        if not isinstance(other, tirx.FloatImm | tirx.IntImm):
            return False
    return isinstance(value, ir.TensorLoad)


def _interleaves(sch: s_tir.Schedule, staged: s_tir.SBlockRV, stored: s_tir.SBlockRV) -> bool:
    """Return whether the stored rows interleave a few staged rows, contiguous in the source."""
    source, result = block_facts(sch, staged), block_facts(sch, stored)
    if len(result.axes) < 3 or len(result.reads) != 1:
        return False
    row, channel = result.axes[-2:]
    if not 1 < channel.extent <= _MOST_CHANNELS or row.extent < _SHORTEST_ROW:
        return False
    if all(axis.extent == 1 for axis in result.axes[:-2]):
        return False
    if result.write.strides[-2:] != (channel.extent, 1) or result.reads[0].strides[-2] != 1:
        return False
    contiguous = (0, 1)
    reads_rows = all(read.strides[-1] in contiguous for read in source.reads)
    return reads_rows and source.write.strides[-1] == 1 and not any(source.conditional)
