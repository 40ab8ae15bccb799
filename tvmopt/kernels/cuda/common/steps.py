"""Schedule steps that GPU templates share: inlining, vector loads and stores, thread binding."""

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
from tvmopt.kernels.workload import Refusal

#: Bytes of the widest vector that TVM can generate in CUDA, for any dtype.
WIDEST_VECTOR = 32
# Bytes of the widest vector of 1- and 2-byte elements; most lanes of a bool vector in arithmetic.
_WIDEST_NARROW, _MOST_BOOLS = 16, 4
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


def output_block(sch: s_tir.Schedule) -> SBlockRV | None:
    """Return the block that writes the only output; None when there are several outputs."""
    blocks = sch.get_output_blocks("root")
    return blocks[0] if len(blocks) == 1 else None


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


def extent(sch: s_tir.Schedule, loop: LoopRV) -> int:
    """Return the extent of ``loop``.

    Raises:
        ScheduleError: When it is not constant; the template does not apply then.
    """
    steps = sch.get(loop).extent
    if not isinstance(steps, tirx.IntImm):
        raise ScheduleError(f"steps of a loop must be a constant, but they are {steps}")
    return int(steps)


def fuse_all(sch: s_tir.Schedule, loops: Sequence[LoopRV]) -> LoopRV:
    """Fuse adjacent loops."""
    return sch.fuse(*loops) if len(loops) > 1 else loops[0]


def widest(facts: BlockFacts) -> int:
    """Return the bytes of the widest element that the block reads or writes."""
    buffers = [facts.write.buffer, *(r.buffer for r in facts.reads)]
    return max(int(b.dtype.itemsize) for b in buffers)


def most_lanes(dtype: object) -> int:
    """Return the most elements of ``dtype`` in a vector load or store of TVM; a power of two.

    It is 1 for bool: TVM generates ``ushort4``, 8 bytes, for a vector of four.
    """
    if str(dtype) == "bool":
        return 1
    size = itemsize(str(dtype))
    return int((_WIDEST_NARROW if size <= 2 else WIDEST_VECTOR) / size)


def lanes_of(sch: s_tir.Schedule, block: SBlockRV) -> int:
    """Return the most lanes of a vectorised loop around ``block``, as far as dtypes limit them."""
    facts = block_facts(sch, block)
    lanes = min(most_lanes(a.buffer.dtype) for a in (facts.write, *facts.reads))

    def on_expr(expr: ir.Expr) -> None:
        nonlocal lanes
        if str(getattr(expr.ty, "dtype", "")) == "bool" and _loads(expr):
            lanes = min(lanes, _MOST_BOOLS)  # a bool of indices only is the same in all lanes

    tvm_ffi.structural_walk(sch.get(block).body, (ir.Expr, on_expr), order="post")
    return lanes


def _loads(expr: ir.Expr) -> bool:
    """Whether ``expr`` loads from memory."""
    found: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(expr, (ir.TensorLoad, found.append), order="post")
    return bool(found)


def moves_by_vectors(facts: BlockFacts, access: Access, inner: int, vector: int) -> bool:
    """Whether ``vector`` steps of axis ``inner`` are one aligned vector of a buffer's last axis."""
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
    """Whether the first element of ``access`` has an offset that is a multiple of ``vector``."""
    zeros = {a.var: tirx.IntImm(str(a.var.ty.dtype), 0) for a in facts.axes}
    start = substitute(access.offset, zeros)
    start = sym.Analyzer().simplify(start)
    return isinstance(start, tirx.IntImm) and int(start) % vector == 0


def split_prefix(
    sch: s_tir.Schedule, loops: Sequence[LoopRV], count: int
) -> tuple[list[LoopRV], list[LoopRV]] | None:
    """Divide nested loops into outer loops of ``count`` iterations in total, and the rest.

    A loop across the boundary is split where that divides evenly; None where it does not.
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
    """Return a fused loop over vectors, and a loop over the ``vector`` lanes within it.

    The last loop of more than one iteration is split, so that a vector stays within its axis; its
    extent must be a multiple of ``vector``.
    """
    place = max((n for n, loop in enumerate(loops) if extent(sch, loop) > 1), default=0)
    inner = fuse_all(sch, loops[place:])
    pieces, lane = sch.split(inner, [extent(sch, inner) // vector, vector])
    return fuse_all(sch, [*loops[:place], pieces]), lane


def split_threads(sch: s_tir.Schedule, loop: LoopRV, threads: int) -> tuple[LoopRV, LoopRV]:
    """Split ``loop`` into thread blocks of up to ``threads`` threads.

    A loop of one iteration gets one thread: its index is a constant, so no bounds check would keep
    further threads from storing what they have not computed.
    """
    outer, inner = sch.split(loop, [None, threads if extent(sch, loop) > 1 else 1])
    return outer, inner


def index_map(
    sch: s_tir.Schedule, block: SBlockRV, how: Callable[..., Sequence[ir.Expr]]
) -> tirx.IndexMap:
    """Return the index map ``how`` over the axes of ``block``, in their index dtype."""
    axes = sch.get(block).iter_vars
    return tirx.IndexMap.from_func(
        how, ndim=len(axes), index_dtype=str(axes[0].var.ty.dtype) if len(axes) else "int64"
    )


def in_pieces(sch: s_tir.Schedule, block: SBlockRV, axis: int, vector: int) -> tirx.IndexMap:
    """Return the map that moves ``axis`` of ``block`` last, split by ``vector``; -1 is the last."""

    def pieces(*indices: tirx.Var) -> list[ir.Expr]:
        others = [index for place, index in enumerate(indices) if place != axis % len(indices)]
        return [*others, indices[axis] // vector, indices[axis] % vector]

    return index_map(sch, block, pieces)


def cache_reads(sch: s_tir.Schedule, block: SBlockRV, inner: int, vector: int) -> list[SBlockRV]:
    """Make ``block`` read from registers that are loaded in vectors of ``vector`` elements.

    Call this while the block and its producers still have loop nests of their own; then
    :func:`load_at` moves the loads to their place.

    Args:
        sch: The schedule.
        block: The block.
        inner: Index of the axis along which the vectors lie.
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
    """Move the loads of :func:`cache_reads` into ``loop``, vectorised."""
    for copy in copies:
        sch.compute_at(copy, loop, preserve_unit_loops=True)
        sch.vectorize(sch.get_loops(copy)[-1])


def cache_result(sch: s_tir.Schedule, block: SBlockRV, vector: int) -> SBlockRV:
    """Make ``block`` write to registers, which are stored in vectors of ``vector`` elements.

    Call this while the block has a loop nest of its own; then :func:`store_at` moves the stores to
    their place.

    Returns:
        The block that stores.
    """
    copy = sch.cache_write(block, 0, "local")
    divided = in_pieces(sch, copy, -1, vector)
    sch.transform_block_layout(copy, divided)
    sch.transform_layout(block, ("write", 0), divided)
    return copy


def cache_result_along(sch: s_tir.Schedule, block: SBlockRV, axis: int, vector: int) -> SBlockRV:
    """Like :func:`cache_result`, with registers laid out as the axes of ``block``, ``axis`` last.

    For blocks with other axes than their output. For a 4-D output indexed by quotients, TVM would
    not find that a thread needs only a few elements.
    """
    divided = in_pieces(sch, block, axis, vector)
    copy = sch.reindex_cache_write(block, 0, "local", divided)
    sch.transform_block_layout(copy, divided)
    return copy


def store_at(sch: s_tir.Schedule, copy: SBlockRV, loop: LoopRV) -> None:
    """Move the stores of :func:`cache_result` into ``loop``, vectorised."""
    sch.reverse_compute_at(copy, loop, preserve_unit_loops=True)
    sch.vectorize(sch.get_loops(copy)[-1])


def _equal(a: ir.Expr, b: ir.Expr) -> bool:
    return bool(tvm_ffi.structural_equal(a, b))


def with_epilogue(sch: s_tir.Schedule, block: SBlockRV) -> SBlockRV:
    """Return the epilogue block of the reduction ``block``; a copy is made where there is none.

    The accumulators are then in registers. Call this while loops are whole: once a loop is split,
    TVM takes iterations past its end for elements.
    """
    consumers = sch.get_consumers(block)
    if consumers:
        sch.set_scope(block, 0, "local")
        return consumers[0]
    return sch.cache_write(block, 0, "local")


def spatial_extent(facts: BlockFacts) -> int:
    """Return the number of output elements."""
    return math.prod(a.extent for a in facts.axes if not a.reduce)


def unrolled(sch: s_tir.Schedule, loop: LoopRV, count: int) -> LoopRV:
    """Unroll ``loop`` by ``count`` if that divides its extent, or fully if it is shorter.

    Returns:
        The unrolled loop; ``loop`` itself where nothing is unrolled.
    """
    steps = extent(sch, loop)
    if count < 2 or steps == 1 or (steps > count and steps % count):
        return loop
    if steps > count:
        _, loop = sch.split(loop, [None, count])
    sch.unroll(loop)
    return loop


def init_before(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> None:
    """Initialise the accumulators of ``block`` before ``loop``, not in its first iteration.

    Do this last: after ``decompose_reduction``, the block is no reduction to TVM any more.
    """
    place = next(
        n for n, other in enumerate(sch.get_loops(block)) if sch.get(other).same_as(sch.get(loop))
    )
    init = sch.decompose_reduction(block, loop)
    for inside in sch.get_loops(init)[place:]:
        sch.unroll(inside)
