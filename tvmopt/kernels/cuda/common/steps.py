"""Steps that several GPU templates share: inline, move data by vectors, deal loops to threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import tvm_ffi
from tvm import IRModule, ir, s_tir, sym, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.analysis import (
    Access,
    BlockFacts,
    all_facts,
    block_facts,
    leaf_blocks,
    substitute,
)

#: Bytes of the widest vector that TVM can write in CUDA, of any type of elements.
WIDEST_VECTOR = 32
# Bytes of the widest vector of elements of one or two bytes, and most conditions in a vector that
# is computed with.
_WIDEST_NARROW, _MOST_BOOLS = 16, 4
# Expressions in a block from which on nothing that is read twice is inlined into it.
_MAX_INLINED_SIZE = 300


def inline_all(sch: s_tir.Schedule, kept: Collection[str] = ()) -> None:
    """Inline every block without reduction that is no output into its consumers.

    What is read several times is computed several times: registers and arithmetic cost less than
    memory here. A block stays where TVM refuses, where the expression would grow without bound, or
    where ``kept`` names it.
    """
    # A second time, because an expression may be short once the indices of reshapes are simplified.
    for _ in range(2):
        _inline_once(sch, kept)
        for block in leaf_blocks(sch):
            _simplify(sch, block)


def _inline_once(sch: s_tir.Schedule, kept: Collection[str]) -> None:
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
    """Simplify the indices of ``block`` where a reshape was inlined.

    Where one index is written in two ways, TVM does not see that they are one, and gives each
    thread registers for all that lies between.

    Before -> after, of 32 images::

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
        # The same axes again: what TVM writes anew it simplifies, knowing how long each is.
        sch.transform_block_layout(block, index_map(sch, block, lambda *axes: list(axes)))


def inlined_passes(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, list[SBlockRV]] | None:
    """A schedule of ``func`` with all inlined that can be, and the blocks that are left.

    None where there is a reduction.
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    if any(block_facts(sch, block).reduction for block in leaf_blocks(sch)):
        return None
    inline_all(sch)
    return sch, leaf_blocks(sch)


def one_pass(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, SBlockRV] | None:
    """As :func:`inlined_passes`, with the one block that is left; None where there are several."""
    found = inlined_passes(func)
    if found is None or len(found[1]) != 1:
        return None
    sch, [block] = found
    return sch, block


def output_block(sch: s_tir.Schedule) -> SBlockRV | None:
    """The block that writes the only result; None when there are several."""
    blocks = sch.get_output_blocks("root")
    return blocks[0] if len(blocks) == 1 else None


def one_reduction(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, BlockFacts, SBlockRV] | None:
    """A schedule with all inlined, facts of its only reduction, the block that stores the result.

    None where there are several reductions, or more than one block after it, or one that is not of
    the same elements.
    """
    sch = s_tir.Schedule(IRModule({"main": func}))
    inline_all(sch)
    blocks = all_facts(sch)
    found = [f for f in blocks if f.reduction]
    last = output_block(sch)
    if len(found) != 1 or last is None or len(blocks) > 2 or found[0].stores != 1:
        return None
    final = block_facts(sch, last)
    if not final.reduction and final.work != spatial_extent(found[0]):
        return None
    return sch, found[0], last


def extent(sch: s_tir.Schedule, loop: LoopRV) -> int:
    """Steps of ``loop``.

    Raises:
        ScheduleError: When TVM cannot tell; a template must not go on then.
    """
    steps = sch.get(loop).extent
    if not isinstance(steps, tirx.IntImm):
        raise ScheduleError(f"steps of a loop must be a constant, but they are {steps}")
    return int(steps)


def fuse_all(sch: s_tir.Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """One loop of several adjacent ones."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def widest(facts: BlockFacts) -> int:
    """Bytes of the widest element that the block reads or writes."""
    buffers = [facts.write.buffer, *(r.buffer for r in facts.reads)]
    return max(int(b.dtype.itemsize) for b in buffers)


def most_lanes(dtype: object) -> int:
    """Elements of ``dtype`` in memory that TVM moves at once in CUDA, at most; a power of two.

    Of conditions it is one: TVM writes a vector of four as ``ushort4``, which is eight bytes.
    """
    if str(dtype) == "bool":
        return 1
    size = itemsize(str(dtype))
    return int((_WIDEST_NARROW if size <= 2 else WIDEST_VECTOR) / size)


def lanes_of(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """Lanes that a vectorised loop around ``block`` may have, as far as types go."""
    facts = block_facts(sch, block)
    lanes = min(most_lanes(a.buffer.dtype) for a in (facts.write, *facts.reads))

    def on_expr(expr: ir.Expr) -> None:
        nonlocal lanes
        if str(getattr(expr.ty, "dtype", "")) == "bool" and _loads(expr):
            lanes = min(lanes, _MOST_BOOLS)  # what depends on indices only is one for all lanes

    tvm_ffi.structural_walk(sch.get(block).body, (ir.Expr, on_expr), order="post")
    return lanes


def _loads(expr: ir.Expr) -> bool:
    """Whether ``expr`` depends on memory."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return bool(found)


def moves_by_vectors(facts: BlockFacts, access: Access, inner: int, vector: int) -> bool:
    """Whether ``vector`` steps of axis ``inner`` are one aligned piece of a buffer's last axis."""
    if vector == 1 or access.strides[inner] != 1 or not len(access.buffer.shape):
        return False
    if vector > most_lanes(access.buffer.dtype):
        return False
    if int(access.buffer.shape[-1]) % vector or facts.axes[inner].extent % vector:
        return False
    for i, (axis, stride) in enumerate(zip(facts.axes, access.strides, strict=True)):
        if i != inner and axis.extent > 1 and (stride is None or stride % vector):
            return False
    return starts_aligned(facts, access, vector)


def starts_aligned(facts: BlockFacts, access: Access, vector: int) -> bool:
    """Whether the first element of ``access`` is a multiple of ``vector`` from the buffer's."""
    zeros = {a.var: tirx.IntImm(str(a.var.ty.dtype), 0) for a in facts.axes}
    start = substitute(access.offset, zeros)
    start = sym.Analyzer().simplify(start)
    return isinstance(start, tirx.IntImm) and int(start) % vector == 0


def split_prefix(
    sch: s_tir.Schedule, loops: Sequence[LoopRV], count: int
) -> tuple[list[LoopRV], list[LoopRV]] | None:
    """Divide nested loops into outer ones of ``count`` steps together and the rest.

    A loop across the boundary is split where that goes up; None where it does not.
    """
    outer: list[LoopRV] = []
    have = 1
    for n, loop in enumerate(loops):
        if have == count:
            return outer, list(loops[n:])
        steps = extent(sch, loop)
        if count % have == 0 and (count // have) % steps == 0:
            outer.append(loop)
            have *= steps
            continue
        part = count // have
        if count % have or steps % part:
            return None
        first, second = sch.split(loop, [part, steps // part])
        return [*outer, first], [second, *loops[n + 1 :]]
    return (outer, []) if have == count else None


def split_vector(
    sch: s_tir.Schedule, loops: Sequence[LoopRV], vector: int
) -> tuple[LoopRV, LoopRV]:
    """One loop over vectors, and one of ``vector`` steps within it.

    The last loop of more than one step is split, so that a vector stays within its axis; its steps
    must be a multiple of ``vector``.
    """
    place = max((n for n, loop in enumerate(loops) if extent(sch, loop) > 1), default=0)
    inner = fuse_all(sch, loops[place:])
    pieces, lane = sch.split(inner, [extent(sch, inner) // vector, vector])
    return fuse_all(sch, [*loops[:place], pieces]), lane


def split_threads(sch: s_tir.Schedule, loop: LoopRV, threads: int) -> tuple[LoopRV, LoopRV]:
    """Loops over thread blocks and over up to ``threads`` threads of each.

    One thread does what is a single step: its index is a constant, so that nothing would keep
    further threads from storing as well what they have not computed.
    """
    outer, inner = sch.split(loop, [None, threads if extent(sch, loop) > 1 else 1])
    return outer, inner


def index_map(
    sch: s_tir.Schedule, block: SBlockRV, how: Callable[..., Sequence[ir.Expr]]
) -> tirx.IndexMap:
    """The map ``how`` of the axes of ``block``, of the type that its indices have."""
    axes = sch.get(block).iter_vars
    return tirx.IndexMap.from_func(
        how, ndim=len(axes), index_dtype=str(axes[0].var.ty.dtype) if len(axes) else "int64"
    )


def in_pieces(sch: s_tir.Schedule, block: SBlockRV, axis: int, vector: int) -> tirx.IndexMap:
    """The map that has ``axis`` of ``block`` last, in pieces of ``vector``; -1 is the last axis."""

    def pieces(*indices: tirx.Var) -> list[ir.Expr]:
        others = [index for place, index in enumerate(indices) if place != axis % len(indices)]
        return [*others, indices[axis] // vector, indices[axis] % vector]

    return index_map(sch, block, pieces)


def cache_reads(sch: s_tir.Schedule, block: SBlockRV, inner: int, vector: int) -> list[SBlockRV]:
    """Have ``block`` read registers that are loaded in pieces of ``vector`` elements.

    Call this while the block and those who write what it reads still have nests of their own;
    :func:`load_at` then puts the loads to their place.

    Args:
        sch: The schedule.
        block: The block.
        inner: Index of the axis that the pieces lie along.
        vector: Elements of a load.

    Returns:
        The blocks that load.
    """
    if vector == 1:
        return []
    facts = block_facts(sch, block)
    if any(facts.conditional):
        return []
    wanted: list[Access] = []
    for read in facts.reads:
        if read.buffer.scope() == "local" or not moves_by_vectors(facts, read, inner, vector):
            continue
        same = [other for other in facts.reads if other.buffer.same_as(read.buffer)]
        if any(not _equal(other.offset, read.offset) for other in same):
            continue
        if not any(read.buffer.same_as(other.buffer) for other in wanted):
            wanted.append(read)
    copies = []
    for read in wanted:
        regions = sch.get(block).reads
        index = next(n for n, r in enumerate(regions) if r.source.same_as(read.buffer))
        copy = sch.cache_read(block, index, "local", consumer_blocks=[block])
        divided = in_pieces(sch, copy, -1, vector)
        sch.transform_block_layout(copy, divided)
        sch.transform_layout(copy, ("write", 0), divided)
        copies.append(copy)
    return copies


def load_at(sch: s_tir.Schedule, copies: Sequence[SBlockRV], loop: LoopRV) -> None:
    """Load within ``loop`` what :func:`cache_reads` made, by vectors."""
    for copy in copies:
        sch.compute_at(copy, loop, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(copy)[-1])


def cache_result(sch: s_tir.Schedule, block: SBlockRV, vector: int) -> SBlockRV:
    """Have ``block`` write registers, which are stored in pieces of ``vector`` elements.

    Call this while the block has a nest of its own; :func:`store_at` puts the stores to their
    place.

    Returns:
        The block that stores.
    """
    copy = sch.cache_write(block, 0, "local")
    divided = in_pieces(sch, copy, -1, vector)
    sch.transform_block_layout(copy, divided)
    sch.transform_layout(block, ("write", 0), divided)
    return copy


def cache_result_along(sch: s_tir.Schedule, block: SBlockRV, axis: int, vector: int) -> SBlockRV:
    """As :func:`cache_result`, of registers that lie as the axes of ``block`` do, ``axis`` last.

    For blocks whose axes are other ones than the result's: what a thread has of a result in four
    dimensions, at indices that are quotients, TVM would not know for a few numbers.
    """
    divided = in_pieces(sch, block, axis, vector)
    copy = sch.reindex_cache_write(block, 0, "local", divided)
    sch.transform_block_layout(copy, divided)
    return copy


def store_at(sch: s_tir.Schedule, copy: SBlockRV, loop: LoopRV) -> None:
    """Store within ``loop`` what :func:`cache_result` made, by vectors."""
    sch.reverse_compute_at(copy, loop, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(copy)[-1])


def _equal(a: ir.Expr, b: ir.Expr) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))


def with_epilogue(sch: s_tir.Schedule, block: SBlockRV) -> SBlockRV:
    """The block that stores what the sums of ``block`` become; a copy is made where none does.

    Sums are then in registers. Make it while loops are whole: once a loop is split, TVM takes the
    steps past its end for elements.
    """
    consumers = sch.get_consumers(block)
    if consumers:
        sch.set_scope(block, 0, "local")
        return consumers[0]
    return sch.cache_write(block, 0, "local")


def spatial_extent(facts: BlockFacts) -> int:
    """Elements of the result."""
    return math.prod(a.extent for a in facts.axes if not a.reduce)


def unrolled(sch: s_tir.Schedule, loop: LoopRV, count: int) -> LoopRV:
    """Unroll ``loop`` by ``count``, where that divides its steps, or wholly where it has fewer.

    Returns:
        The loop that is unrolled; ``loop`` itself where none is.
    """
    steps = extent(sch, loop)
    if count < 2 or steps == 1 or (steps > count and steps % count):
        return loop
    if steps > count:
        _, loop = sch.split(loop, [None, count])
    sch.unroll(loop)
    return loop


def init_before(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> None:
    """Set the sums of ``block`` to what they start from before ``loop``, not at its first step.

    A block whose init is apart is no reduction to TVM any more: do this last.
    """
    place = next(
        n for n, other in enumerate(sch.get_loops(block)) if sch.get(other).same_as(sch.get(loop))
    )
    init = sch.decompose_reduction(block, loop)
    for inside in sch.get_loops(init)[place:]:
        sch.unroll(inside)
