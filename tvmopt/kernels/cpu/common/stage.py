"""Schedule steps shared by the families: choose a vector length, vectorise, parallelise, inline.

A *stage* is a block with its own loop nest under the root block. *Work* counts iterations.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from typing import Any

from tvm import IRModule, s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.cpu import CpuArch
from tvmopt.device.dtypes import HALF_FLOATS
from tvmopt.kernels.analysis import Access, BlockFacts, all_facts, block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.keep_schedule import keep_schedule
from tvmopt.kernels.cpu.hint import MAX_VECTOR_REGISTERS, CpuHint
from tvmopt.kernels.workload import Refusal

# Minimum iterations for a parallel loop; below, the launch (2 to 10 us) costs more than it saves.
PARALLEL_WORK = 16 * 1024
# Maximum expressions in a block after inlining a producer that it reads twice: TVM's simplifier
# takes seconds on a few hundred nested conditions.
MAX_INLINED_SIZE = 300
# Maximum nesting of exp, tanh, erf and sigmoid: each uses its argument several times, and TVM's
# code generator duplicates the argument at every use. Two levels compile in 0.1 s, three in 18 s.
MAX_MATH_DEPTH = 2
# Shortest vector of a power of two that replaces a longer vector in a condition, and where 16-bit
# floats are converted.
_SHORTEST_PART, _SHORTEST_CONVERTED = 4, 8
# Calls that are cheaper to compute once per row than to repeat once per element.
_COSTLY = frozenset(
    {
        "tirx.exp",
        "tirx.erf",
        "tirx.tanh",
        "tirx.sqrt",
        "tirx.rsqrt",
        "tirx.log",
        "tirx.pow",
        "tirx.sigmoid",
        "tirx.sin",
        "tirx.cos",
    }
)


def divisors(extent: int, limit: int) -> list[int]:
    """Return the divisors of ``extent`` up to ``limit``, ascending: splits without predicates."""
    return [d for d in range(1, min(extent, limit) + 1) if extent % d == 0]


def vector_length(extent: int, lanes: int, registers: int = MAX_VECTOR_REGISTERS) -> int:
    """Return the length of the vectorised loop: a divisor of ``extent``.

    A split by a non-divisor puts a predicate into the vectorised loop, and TVM then scalarises it.
    Among the divisors, the best lane utilisation wins, then the longest vector: 3136 -> 64,
    49 -> 49 (4 registers of 16, 77 % used), 14 -> 14, 1009 -> 1.

    Args:
        extent: Extent of the loop.
        lanes: Lanes of a vector register.
        registers: Maximum length in vector registers.

    Returns:
        The length in elements; 1 when only the scalar loop divides.
    """
    best, best_score = 1, (0.0, 0)
    for length in divisors(extent, registers * lanes):
        score = (length / (math.ceil(length / lanes) * lanes), length)
        if score > best_score:
            best, best_score = length, score
    return best


@dataclasses.dataclass(frozen=True)
class Tail:
    """Adjacent axes that form one contiguous axis in memory.

    Attributes:
        axes: Indices of the axes, including axes of extent 1.
        inner: Index of the innermost axis whose extent is not 1.
        extent: Product of the extents.
    """

    axes: tuple[int, ...]
    inner: int
    extent: int


def contiguous_tail(facts: BlockFacts, order: Sequence[int]) -> Tail | None:
    """Return the longest tail of the axes ``order`` that fuses to one axis in every access.

    In each access a tail must have one constant stride or be broadcast, and no condition may depend
    on it. Then fusing it needs no division.

    Returns:
        The tail; None when no axis qualifies or all have extent 1.
    """
    accesses = [facts.write, *facts.reads]
    start, inner, outer = len(order), None, None
    for position in reversed(range(len(order))):
        i = order[position]
        if facts.axes[i].extent > 1:
            if facts.conditional[i] or any(a.strides[i] is None for a in accesses):
                break
            if outer is None:
                inner = i
            elif not all(_nests(a, i, outer, facts.axes[outer].extent) for a in accesses):
                break
            outer = i
        start = position
    if inner is None:
        return None
    axes = tuple(order[start:])
    return Tail(axes, inner, math.prod(facts.axes[i].extent for i in axes))


def _nests(access: Access, outer: int, inner: int, extent: int) -> bool:
    step = access.strides[inner]
    return step is not None and access.strides[outer] == step * extent


def vectorizes_well(facts: BlockFacts, axis: int) -> bool:
    """Return whether vectorising ``axis`` gives unit-stride or broadcast accesses, no gathers."""
    if facts.divides or facts.conditional[axis] or facts.write.strides[axis] != 1:
        return False
    return all(a.strides[axis] in (0, 1) for a in facts.reads)


def collapse_map(facts: BlockFacts, axes: Sequence[int], arity: int) -> tirx.IndexMap:
    """Return the index map of ``arity`` indices that collapses adjacent ``axes``, row-major."""
    first, last = axes[0], axes[-1]
    extents = [axis.extent for axis in facts.axes]

    def collapse(*indices: tirx.Var) -> list[Any]:
        flat = indices[first]
        for i in range(first + 1, last + 1):
            flat = flat * extents[i] + indices[i]
        return [*indices[:first], flat, *indices[last + 1 :]]

    return tirx.IndexMap.from_func(collapse, ndim=arity)


def collapse_axes(sch: s_tir.Schedule, block: SBlockRV, axes: Sequence[int]) -> None:
    """Collapse adjacent axes of ``block``; the buffers keep their shapes.

    Before -> after::

        for c, y, x: B[c, y, x] = A[c, y, x]
        for c, yx: B[c, yx // X, yx % X] = A[c, yx // X, yx % X]
    """
    if len(axes) > 1:
        facts = block_facts(sch, block)
        sch.transform_block_layout(block, collapse_map(facts, axes, len(facts.axes)))


def busy_cores(work: int, arch: CpuArch) -> int:
    """Return the cores that a nest of ``work`` iterations runs on, see :func:`parallelize`."""
    return arch.cores if work >= PARALLEL_WORK else 1


def parallelize(sch: s_tir.Schedule, loops: Sequence[LoopRV], hint: CpuHint, work: int) -> None:
    """Parallelise the leading ``loops`` if there is enough work and the hint allows it.

    Before -> after, for 2 cores and loops of 3, 32 and 7::

        for a, b, c: ...   ->   for ab in T.parallel(96): for c: ...

    No more loops are fused than the tasks per core need, because each further one adds divisions.

    Args:
        sch: The schedule.
        loops: Data-parallel loops, outermost first.
        hint: Supplies the cores and the tasks per core.
        work: Iterations of the nest; below ``PARALLEL_WORK`` it stays serial.
    """
    if work < PARALLEL_WORK or hint.arch.cores < 2 or hint.tasks_per_core == 0:
        return
    wanted = hint.arch.cores * hint.tasks_per_core
    head: list[LoopRV] = []
    tasks = 1
    for loop in loops:
        extent = int(sch.get(loop).extent)
        if tasks * extent > wanted and extent > 1:
            # The smallest divisor that gives enough tasks; the remainder stays a serial loop.
            part = min(d for d in range(1, extent + 1) if extent % d == 0 and tasks * d >= wanted)
            if part < extent:
                loop, _ = sch.split(loop, [part, extent // part])
            head.append(loop)
            tasks *= part
            break
        head.append(loop)
        tasks *= extent
        if tasks >= wanted:
            break
    if tasks > 1:
        sch.parallel(sch.fuse(*head) if len(head) > 1 else head[0])


def vectorize_tail(
    sch: s_tir.Schedule, facts: BlockFacts, loops: Sequence[LoopRV], hint: CpuHint
) -> list[LoopRV]:
    """Vectorise the contiguous tail of ``loops``, the loops of the last ``len(loops)`` axes.

    Returns:
        The loops around the vectorised loop, outermost first.
    """
    first = len(facts.axes) - len(loops)
    tail = contiguous_tail(facts, range(first, len(facts.axes)))
    if tail is None or not vectorizes_well(facts, tail.inner):
        return list(loops)
    members = [loops[i - first] for i in tail.axes]
    outer = list(loops[: len(loops) - len(members)])
    inner = sch.fuse(*members) if len(members) > 1 else members[0]
    return [*outer, vectorize_loop(sch, inner, facts, hint)]


def inline_copies(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Inline into ``block`` the producers that only copy (a pad of width zero, a reshape)."""
    for producer in sch.get_producers(block):
        facts = block_facts(sch, producer)
        if (
            len(facts.reads) == 1
            and facts.reads[0].strides == facts.write.strides
            and facts.reads[0].buffer.dtype == facts.write.buffer.dtype
            and not any(facts.conditional)
            and not facts.calls
            and not facts.reduction
        ):
            try:
                sch.compute_inline(producer)
            except ScheduleError:
                continue  # cannot be inlined: it keeps its own loop nest


def inline_read_once(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Inline into the reduction ``block`` the producers whose elements it reads once (a cast)."""
    for producer in sch.get_producers(block):
        facts = block_facts(sch, producer)
        if (
            not facts.reduction
            and not any(facts.conditional)
            and all(read.strides == facts.write.strides for read in facts.reads)
            and len(sch.get_consumers(producer)) == 1
            and block_facts(sch, block).work <= facts.work
        ):
            try:
                sch.compute_inline(producer)
            except ScheduleError:
                continue  # cannot be inlined: it keeps its own loop nest


def inline_injective(sch: s_tir.Schedule, kept: Collection[str] = ()) -> None:
    """Inline every injective block into its consumers, unless that repeats much work.

    A block stays if

    - it writes an output, or a consumer is a reduction;
    - it is costly and read much more often than it is computed;
    - the inlined expression grows too large (in a chain of blocks that each read their predecessor
      twice, it doubles at every step);
    - the inlined expression nests too many functions that :mod:`.vector_math` rewrites.

    Args:
        sch: The schedule.
        kept: Names of blocks that stay.
    """
    outputs = {sch.get(b).name_hint for b in sch.get_output_blocks("root")}
    for block in leaf_blocks(sch):
        name = sch.get(block).name_hint
        if name in outputs or name in kept:
            continue
        facts = block_facts(sch, block)
        consumers = [block_facts(sch, c) for c in sch.get_consumers(block)]
        if facts.reduction or not consumers or any(c.reduction for c in consumers):
            continue
        repeated = sum(c.work for c in consumers) >= 4 * facts.work
        if repeated and facts.calls & _COSTLY:
            continue
        uses = sum(r.buffer.same_as(facts.write.buffer) for c in consumers for r in c.reads)
        if uses > 1 and max(c.size for c in consumers) + uses * facts.size > MAX_INLINED_SIZE:
            continue
        depth = facts.math_depth
        if depth and depth + max(c.math_depth for c in consumers) > MAX_MATH_DEPTH:
            continue
        try:
            sch.compute_inline(block)
        except ScheduleError:
            continue  # cannot be inlined: it keeps its own loop nest


@keep_schedule
def inlined_reductions(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, tuple[str, ...]] | Refusal:
    """Inline the injective blocks of ``func``; return the schedule and its reductions' names."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    reductions = tuple(facts.name for facts in all_facts(sch) if facts.reduction)
    if not reductions:
        return Refusal("it has no reduction")
    if len(sch.get_output_blocks("root")) != 1:
        return Refusal("it has several outputs")
    inline_injective(sch)
    for name in reductions:
        inline_copies(sch, sch.get_sblock(name))
        inline_read_once(sch, sch.get_sblock(name))
    return sch, reductions


def vectorize_loop(sch: s_tir.Schedule, loop: LoopRV, facts: BlockFacts, hint: CpuHint) -> LoopRV:
    """Split the innermost loop of a block, and vectorise the inner part.

    In a condition the vector is a phi of two basic blocks. LLVM passes it in registers only if its
    length is a power of two, otherwise element by element: of 144 bytes, 16 are a vector.
    16-bit floats are converted by whole registers: 44 of 88 take 1.5 times as long as 8 (Zen 4).

    Args:
        sch: The schedule.
        loop: The innermost loop; no condition depends on it.
        facts: Facts of its block.
        hint: The configuration.

    Returns:
        The outer loop; ``loop`` itself if the vector length is 1.
    """
    extent, lanes = int(sch.get(loop).extent), hint.arch.lanes(facts.dtype)
    length = vector_length(extent, lanes, hint.vector_registers)
    part = math.gcd(extent, 1 << (lanes * hint.vector_registers).bit_length() - 1)
    if any(facts.conditional):
        length = part if part >= _SHORTEST_PART else length
    elif length % hint.arch.lanes("float32") and _has_halves(facts):
        length = part if part >= _SHORTEST_CONVERTED else length
    return _split(sch, loop, extent, length)


def _has_halves(facts: BlockFacts) -> bool:
    return any(a.buffer.dtype in HALF_FLOATS for a in (facts.write, *facts.reads))


def split_vector(
    sch: s_tir.Schedule, loop: LoopRV, lanes: int, registers: int = MAX_VECTOR_REGISTERS
) -> LoopRV:
    """Split ``loop`` and vectorise the inner part, of :func:`vector_length`.

    Args:
        sch: The schedule.
        loop: The innermost loop.
        lanes: Lanes of a vector register.
        registers: Maximum length in vector registers.

    Returns:
        The outer loop; ``loop`` itself if the vector length is 1.
    """
    extent = int(sch.get(loop).extent)
    return _split(sch, loop, extent, vector_length(extent, lanes, registers))


def _split(sch: s_tir.Schedule, loop: LoopRV, extent: int, length: int) -> LoopRV:
    if length == 1:
        return loop
    rest, vector = sch.split(loop, [extent // length, length])
    sch.vectorize(vector)
    return rest
