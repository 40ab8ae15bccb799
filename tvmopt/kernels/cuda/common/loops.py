"""Split, fuse, unroll and bind loops; initialise reductions before them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tvm import ir, s_tir, tirx
from tvm.s_tir import ScheduleError
from tvm.s_tir.schedule import LoopRV, SBlockRV


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


def index_map(
    sch: s_tir.Schedule, block: SBlockRV, how: Callable[..., Sequence[ir.Expr]]
) -> tirx.IndexMap:
    """Return the index map ``how`` over the axes of ``block``, in their index dtype."""
    axes = sch.get(block).iter_vars
    return tirx.IndexMap.from_func(
        how, ndim=len(axes), index_dtype=str(axes[0].var.ty.dtype) if len(axes) else "int64"
    )


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
