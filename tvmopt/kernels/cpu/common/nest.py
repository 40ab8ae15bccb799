"""GotoBLAS-style loop nest: tile loops, reduction, register tile (micro-kernel), fused epilogue."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import tvm_ffi
from tvm import IRModule, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts, leaf_blocks
from tvmopt.kernels.cpu.common.injective import schedule_injective
from tvmopt.kernels.cpu.common.keep_schedule import keep_schedule
from tvmopt.kernels.cpu.common.stage import (
    inline_copies,
    inline_injective,
    inline_read_once,
    vectorize_loop,
)
from tvmopt.kernels.cpu.common.tile_config import TileConfig
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.intrinsics import DotIntrinsic
from tvmopt.kernels.cpu.passes.prefetch import annotate_epilogue_prefetch
from tvmopt.kernels.scheduled import FREE_ATTR
from tvmopt.kernels.workload import Refusal

# Annotation for TVM's LoopPartition: split the loop where a condition changes.
CUT = "pragma_loop_partition_hint"

#: Marks a weight-prepacking block: it runs once, when the model is built, not at every call.
PREPROC = "meta_schedule.layout_rewrite_preproc"


@dataclasses.dataclass(frozen=True)
class Dot:
    """A dot-product instruction for the innermost loops of a tile.

    Attributes:
        intrinsic: The instruction; its lanes are the extent of the tile's innermost loop.
        k_group: The loop over the multiply-adds of one lane in an instruction.
    """

    intrinsic: DotIntrinsic
    k_group: LoopRV


@dataclasses.dataclass(frozen=True)
class TiledForm:
    """A function with one reduction, normalised for a register tile.

    Attributes:
        sch: Schedule with injective blocks inlined.
        anchor: The reduction block.
        epilogue: The block that applies the epilogue to the anchor's elements.
        facts: Facts of the anchor; its last data-parallel axis is the vectorised one.
        producers: Names of the blocks that produce the data, usually padding.
    """

    sch: s_tir.Schedule
    anchor: SBlockRV
    epilogue: SBlockRV
    facts: BlockFacts
    producers: tuple[str, ...]

    @property
    def extents(self) -> list[int]:
        """Extents of the data-parallel axes."""
        return [self.facts.axes[i].extent for i in self.facts.spatial]


@dataclasses.dataclass(frozen=True)
class NestLoops:
    """Loops of an anchor whose data-parallel axes are split for a register tile.

    Attributes:
        units: Loops of extent 1 that belong to no data-parallel or reduction axis.
        outer: Tile loops in the order of the axes, then the cache-block loops.
        reduction: Reduction loops.
        rows: Row loops of the register tile; they are unrolled.
        vectors: Loops over the vectors of the register tile, if several, and over lanes.
        k_blocks: The loop over K blocks, if any.
        partial: Tile loops whose last tile is partial. TVM's LoopPartition splits it off, so that
            full tiles have no bounds check per row; not if the loop is fused with another parallel
            loop.
    """

    units: Sequence[LoopRV]
    outer: Sequence[LoopRV]
    reduction: Sequence[LoopRV]
    rows: Sequence[LoopRV]
    vectors: Sequence[LoopRV]
    k_blocks: Sequence[LoopRV] = ()
    partial: Sequence[LoopRV] = ()


@keep_schedule
def only_reduction(func: tirx.PrimFunc) -> tuple[s_tir.Schedule, SBlockRV] | Refusal:
    """Inline the injective blocks of ``func`` and return the schedule with its only reduction."""
    sch = s_tir.Schedule(IRModule({"main": func}))
    reductions = [f for f in (block_facts(sch, b) for b in leaf_blocks(sch)) if f.reduction]
    if len(reductions) != 1:
        return Refusal(f"it has {len(reductions)} reductions, not one")
    if reductions[0].stores != 1:
        return Refusal("its reduction has several results")
    if reductions[0].reduced == 1:
        return Refusal("its reduction has one step")
    anchor = sch.get_sblock(reductions[0].name)
    inline_injective(sch)
    inline_copies(sch, anchor)
    return sch, anchor


def reduction_read_once(
    func: tirx.PrimFunc,
) -> tuple[s_tir.Schedule, SBlockRV, BlockFacts] | Refusal:
    """Return :func:`only_reduction` with producers inlined that it reads once, and its facts."""
    found = only_reduction(func)
    if isinstance(found, Refusal):
        return found
    sch, anchor = found
    inline_read_once(sch, anchor)
    return sch, anchor, block_facts(sch, anchor)


def schedule_nest(
    form: TiledForm,
    hint: TileConfig,
    loops: NestLoops,
    *,
    loops_in_k_block: int = 0,
    unroll_reduction: bool = False,
    dot: Dot | None = None,
    prefetch: bool = False,
) -> None:
    """Reorder and parallelise the loops of the anchor; compute epilogue and producers at them.

    Args:
        form: The function.
        hint: Supplies the order of ``loops.outer``, the number of parallel loops and the
            compute_at depth of the producers.
        loops: The anchor's loops.
        loops_in_k_block: Number of innermost tile loops inside the K-block loop, if there is one.
        unroll_reduction: Whether to unroll the reduction loops.
        dot: The dot-product instruction that replaces the lane loop, if any.
        prefetch: Whether the epilogue's operands are prefetched before the tile, if all of its
            reduction precedes the epilogue.
    """
    sch, anchor, epilogue = form.sch, form.anchor, form.epilogue
    around = [*loops.units, *(loops.outer[position] for position in hint.loop_order)]
    within: list[LoopRV] = []
    if loops_in_k_block and loops.k_blocks:
        around, within = around[:-loops_in_k_block], around[-loops_in_k_block:]
    reduction, tile = [*loops.k_blocks, *within, *loops.reduction], [*loops.rows, *loops.vectors]
    sch.reorder(*around, *reduction, *tile, *([dot.k_group] if dot else []))

    sch.reverse_compute_at(epilogue, around[-1], preserve_unit_loops=True)
    finish = sch.get_loops(epilogue)[len(around) :]
    unroll_and_vectorize(sch, finish[-1:] if within else finish)
    if prefetch and not loops.k_blocks and len(finish) > 1:
        annotate_epilogue_prefetch(sch, finish[0], hint.arch)
    place_producers(sch, anchor, around, len(loops.units), hint)
    unroll_and_vectorize(sch, tile, vectorize=dot is None)
    if unroll_reduction:
        for loop in loops.reduction:
            sch.unroll(loop)
    parallel = parallelize_outer(sch, around, len(loops.units), hint)
    for loop in loops.partial:
        if len(parallel) < 2 or not any(loop.same_as(other) for other in parallel):
            sch.annotate(loop, CUT, 1)
    # Last, because TVM cannot prove a loop parallel after decompose_reduction of its reduction.
    init = sch.decompose_reduction(anchor, reduction[0])
    unroll_and_vectorize(sch, sch.get_loops(init)[-len(tile) :])
    if dot:
        tensorize(sch, anchor, tile[-1], dot)


def tensorize(sch: s_tir.Schedule, anchor: SBlockRV, lanes: LoopRV, dot: Dot) -> None:
    """Replace the loop over lanes, and the K group in it, by the instruction ``dot``."""
    if not isinstance(sch.get(dot.k_group).body.predicate, tirx.IntImm):
        # A block around keeps the bounds check of a partial tile: an intrinsic must have none.
        sch.blockize(lanes)
        lanes = sch.get_loops(anchor)[0]
    sch.tensorize(lanes, dot.intrinsic.register())


def place_producers(
    sch: s_tir.Schedule, anchor: SBlockRV, around: Sequence[LoopRV], units: int, hint: TileConfig
) -> None:
    """Compute the producers of the data (padding) at the configured depth of the loops ``around``.

    The first ``units`` of these loops, of extent 1, do not count. At depth 0, or if it is inlined,
    a producer gets its own loop nest at the root.
    """
    for producer in sch.get_producers(anchor):
        if PREPROC in sch.get(producer).annotations or _is_scheduled(sch, producer):
            continue
        if hint.producer_depth > 0:
            depth = units + hint.producer_depth
            sch.compute_at(producer, around[depth - 1], preserve_unit_loops=True)
            _vectorize_inner(sch, producer, depth, hint)
        else:
            schedule_injective(sch, producer, hint)


def parallelize_outer(
    sch: s_tir.Schedule, around: Sequence[LoopRV], units: int, hint: TileConfig
) -> Sequence[LoopRV]:
    """Fuse the outermost loops and run them in parallel.

    Args:
        sch: The schedule.
        around: The loops around the register tile.
        units: How many of them, of extent 1, precede the tile loops.
        hint: Supplies the number of parallel tile loops.

    Returns:
        The loops that were fused; none if the nest is serial.
    """
    loops = around[: units + hint.parallel_loops] if hint.parallel_loops else []
    if loops:
        sch.parallel(sch.fuse(*loops) if len(loops) > 1 else loops[0])
    return loops


def misfit(
    hint: TileConfig,
    extents: Sequence[int],
    l2_block: Sequence[int] = (),
    loops_in_k_block: int = 0,
) -> Refusal | None:
    """Return why the register tile and loops of ``hint`` do not suit axes of ``extents``."""
    tile, count = hint.register_tile, len(extents) + sum(size > 0 for size in l2_block)
    loops = count - loops_in_k_block
    if len(tile) != len(extents) or not all(
        1 <= b <= e for b, e in zip(tile, extents, strict=True)
    ):
        return Refusal(f"the register tile {tile} does not fit into the axes {tuple(extents)}")
    if len(l2_block) not in (0, len(extents)) or not all(
        not size or (size <= e and size % b == 0)
        for size, b, e in zip(l2_block, tile, extents, strict=False)
    ):
        return Refusal(f"the L2 block {l2_block} is not made of register tiles of {tile}")
    if sorted(hint.loop_order) != list(range(count)):
        return Refusal(f"the loop order {hint.loop_order} is not one of {count} loops")
    if loops <= 0:
        return Refusal(f"{loops_in_k_block} loops in a K block leave none of {count} around it")
    if any(loop >= len(extents) for loop in hint.loop_order[loops:]):
        # TVM then allocates too small a region for the accumulators, and the results are wrong.
        return Refusal("a loop over cache blocks cannot be inside the K-block loop")
    if not 0 <= hint.parallel_loops <= loops:
        return Refusal(f"{hint.parallel_loops} of {loops} loops cannot be parallel")
    depth = hint.producer_depth
    if depth and not hint.parallel_loops <= depth <= loops:
        return Refusal(f"producers at depth {depth} are not inside the parallel loops of {loops}")
    return None


def packing_blocks(func: tirx.PrimFunc) -> list[s_tir.SBlock]:
    """Return the weight-prepacking blocks of a scheduled function, which run at build time."""
    found: list[s_tir.SBlock] = []

    def visit(block: s_tir.SBlock) -> None:
        if PREPROC in block.annotations:
            found.append(block)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, visit), order="post")
    return found


def is_constant(func: tirx.PrimFunc, sch: s_tir.Schedule, weight: Access) -> bool:
    """Return whether ``weight`` reads a constant parameter of ``func``."""
    free = func.attrs.get(FREE_ATTR) if func.attrs else None
    if not free:
        return False
    params = sch.mod["main"].params
    return any(params[int(i)].same_as(weight.buffer) for i in free)


def schedule_rest(sch: s_tir.Schedule, hint: CpuHint) -> None:
    """Schedule each remaining stage at the root, outside the tile and except prepacking."""
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        if PREPROC in sch.get(block).annotations or _is_scheduled(sch, block):
            continue
        if not isinstance(sch.get(block).body, tirx.BufferStore | tirx.SeqStmt):
            continue  # a tensor intrinsic
        if not block_facts(sch, block).reduction:
            schedule_injective(sch, block, hint)


def unit_loops(facts: BlockFacts, loops: Sequence[LoopRV]) -> list[LoopRV]:
    """Return the loops of a block's remaining axes, of extent 1: neither spatial nor reduction."""
    used = {*facts.spatial, *facts.reduction}
    return [loop for i, loop in enumerate(loops) if i not in used]


def _vectorize_inner(sch: s_tir.Schedule, block: SBlockRV, depth: int, hint: CpuHint) -> None:
    """Vectorise the innermost loop of ``block`` below ``depth``."""
    loops = sch.get_loops(block)
    facts = block_facts(sch, block)
    if len(loops) > depth and not facts.conditional[-1]:
        vectorize_loop(sch, loops[-1], facts, hint)


def _is_scheduled(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Return whether a loop of ``block`` is not serial, or is shared with another block."""
    loops = [sch.get(loop) for loop in sch.get_loops(block)]
    return any(
        loop.kind != tirx.ForKind.SERIAL or isinstance(loop.body, tirx.SeqStmt) for loop in loops
    )


def unroll_and_vectorize(
    sch: s_tir.Schedule, loops: list[LoopRV], *, vectorize: bool = True
) -> None:
    """Vectorise the last loop; unroll the others."""
    for loop in loops[:-1]:
        if int(sch.get(loop).extent) > 1:
            sch.unroll(loop)
    if vectorize and int(sch.get(loops[-1]).extent) > 1:
        sch.vectorize(loops[-1])


def find_epilogue(sch: s_tir.Schedule, anchor: SBlockRV) -> SBlockRV:
    """Return the block to fuse as the anchor's epilogue; a cache_write copy when there is none.

    The consumer is fused if it is the only one and its axes are the anchor's spatial axes, in
    order. Otherwise it keeps its own loop nest. The anchor's buffer gets scope ``local``.
    """
    facts = block_facts(sch, anchor)
    consumers = sch.get_consumers(anchor)
    if len(consumers) == 1:
        consumer = block_facts(sch, consumers[0])
        reads = [r for r in consumer.reads if r.buffer.same_as(facts.write.buffer)]
        spatial = [facts.axes[i].extent for i in facts.spatial]
        if (
            not consumer.reduction
            and [a.extent for a in consumer.axes] == spatial
            and all(r.strides == _strides(facts.write.buffer) for r in reads)
        ):
            sch.set_scope(anchor, 0, "local")
            return consumers[0]
    return sch.cache_write(anchor, 0, "local")


def _strides(buffer: tirx.Buffer) -> tuple[int, ...]:
    """Return row-major strides, with 0 for extent 1 as in :class:`Access`."""
    strides: list[int] = []
    step = 1
    for extent in reversed([int(e) for e in buffer.shape]):
        strides.insert(0, step if extent > 1 else 0)
        step *= extent
    return tuple(strides)
