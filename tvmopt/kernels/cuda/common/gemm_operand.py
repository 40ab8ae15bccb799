"""Operands and epilogue of a GEMM: dtypes, vector widths, memory traffic."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts
from tvmopt.kernels.cuda.common.gemm_inlining import inline_producers
from tvmopt.kernels.cuda.common.runs import aligned_run, contiguous_run

#: Bytes of the longest vector that a thread loads or stores.
VECTOR_BYTES = 16


@dataclasses.dataclass(frozen=True)
class GemmOperand:
    """One operand of the GEMM.

    Attributes:
        index: Index among the anchor block's reads.
        dtype: Dtype in which it is multiplied.
        size: Bytes of the widest element in memory that it is computed from.
        contiguous: Contiguous axis: ``"k"``, or ``"x"`` for its spatial one (i or j); ``""`` for
            none.
        run: Length of aligned contiguous runs along that axis, in elements: a power of two.
        plain: Whether it is loaded without arithmetic (zero where padded).
        padded: Whether a condition pads it with zeros.
        period: A software pipeline may load it ahead by multiples of so many elements of K. By
            others, TVM no longer finds that a run over several axes is contiguous, and its vector
            of indices is no CUDA type.
    """

    index: int
    dtype: str
    size: float
    contiguous: str
    run: int
    plain: bool
    padded: bool
    period: int = 1


def gemm_operand(
    sch: s_tir.Schedule, copy: SBlockRV, index: int, kinds: Sequence[str], own: str
) -> GemmOperand:
    """Analyse the reads of an operand's copy, with its producers inlined.

    Args:
        sch: The schedule.
        copy: The copy block, as ``reindex`` leaves it.
        index: Index among the anchor's reads.
        kinds: Class of each of the copy's axes.
        own: Class of its spatial axis, ``"i"`` or ``"j"``.
    """
    trial = sch.copy()
    block = trial.get_sblock(sch.get(copy).name_hint)
    inline_producers(trial, block)
    facts = block_facts(trial, block)
    dtype = str(facts.write.buffer.dtype)
    rank = len(facts.axes)
    reads = [r for r in facts.reads if sum(s != 0 for s in r.strides) * 2 > rank]
    best, run = "", 1
    for kind in ("k", own):
        axes = [n for n, k in enumerate(kinds) if k == kind and facts.axes[n].extent > 1]
        if axes and reads:
            found = min(aligned_run(r, facts, axes) for r in reads)
            if found > run:
                best, run = ("k" if kind == "k" else "x"), found
    if not best and reads:
        # No vectors; still prefer coalesced loads by neighbouring threads.
        near = [n for n, a in enumerate(facts.axes) if a.extent > 1 and reads[0].strides[n] == 1]
        longest = max(near, key=lambda n: facts.axes[n].extent, default=-1)
        best = {"k": "k", own: "x"}.get(kinds[longest], "") if near else ""
    value = stores(trial, block)[0].value
    plain = _is_plain(value) and all(str(r.buffer.dtype) == dtype for r in facts.reads)
    size = max([float(r.buffer.dtype.itemsize) for r in facts.reads] or [1.0])
    padded = any(call.endswith("if_then_else") for call in facts.calls)
    along = [n for n, k in enumerate(kinds) if k == "k" and facts.axes[n].extent > 1]
    period = max((_period(r, facts, along, run) for r in reads), default=1) if best == "k" else 1
    return GemmOperand(index, dtype, size, best, run, plain, padded, period)


def _period(access: Access, facts: BlockFacts, axes: Sequence[int], run: int) -> int:
    """Return the elements of K after which runs over several axes repeat; 1 for runs of one axis.

    Example: K is the taps and channels of ``x[.., y * 16 + r, x * 16 + s, c]``, 16 x 16 x 3. Runs
    of 8 elements lie over ``s`` and ``c``, which repeat after 48.
    """
    length = 1
    for place, n in enumerate(reversed(axes)):
        if access.strides[n] != length:
            # Over one axis only, or in whole runs, the innermost index alone is contiguous.
            return 1 if place < 2 or facts.axes[axes[-1]].extent % run == 0 else length
        length *= facts.axes[n].extent
    return 1


def _is_plain(value: ir.Expr) -> bool:
    """Whether ``value`` is a load, or a choice between a load and zero (padding)."""
    if isinstance(value, ir.Call) and str(getattr(value.op, "name", "")).endswith("if_then_else"):
        _, then, other = value.args
        return (
            _is_plain(then)
            and isinstance(other, tirx.IntImm | tirx.FloatImm)
            and (float(other.value) == 0.0)
        )
    return isinstance(value, ir.TensorLoad)


def output_run(sch: s_tir.Schedule, copy: SBlockRV) -> int:
    """Return the length of aligned contiguous runs of the output, in elements: a power of two.

    Args:
        sch: The schedule.
        copy: The block that copies the accumulator, the epilogue's first input.
    """
    output = block_facts(sch, sch.get_output_blocks("root")[0])
    if str(output.write.buffer.dtype) == "bool":
        return 1  # TVM has no bool vectors
    if any(str(buffer.dtype) == "bool" for buffer in epilogue_inputs(sch, copy)):
        return 1
    extents = [axis.extent for axis in output.axes]
    return contiguous_run(output.write, extents, len(extents) - 1) if extents else 1


def epilogue_inputs(sch: s_tir.Schedule, copy: SBlockRV) -> list[tirx.Buffer]:
    """Return the buffers that the epilogue of ``copy`` reads besides its own, block by block."""
    outside: list[tirx.Buffer] = []
    waiting = [copy]
    made = [sch.get(copy).writes[0].source]
    while waiting:
        for block in sch.get_consumers(waiting.pop()):
            found = sch.get(block)
            made.append(found.writes[0].source)
            waiting.append(block)
            for region in found.reads:
                if not any(region.source.same_as(m) for m in made):
                    outside.append(region.source)
    return outside


def stores(sch: s_tir.Schedule, block: SBlockRV) -> list[tirx.BufferStore]:
    """Return the stores in the body of ``block``."""
    found: list[tirx.BufferStore] = []
    tvm_ffi.structural_walk(sch.get(block).body, (tirx.BufferStore, found.append), order="post")
    return found
