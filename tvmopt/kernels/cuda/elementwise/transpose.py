"""Transpose through shared-memory tiles: loads and stores are both coalesced."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmopt.kernels.analysis import Access, BlockFacts, block_facts
from tvmopt.kernels.cuda.common.inlining import one_elementwise_block
from tvmopt.kernels.cuda.common.loops import extent, fuse_all, index_map
from tvmopt.kernels.cuda.common.vectors import (
    cache_result_along,
    in_pieces,
    load_at,
    moves_by_vectors,
    store_at,
)
from tvmopt.kernels.cuda.elementwise.config import TransposeConfig
from tvmopt.kernels.workload import Refusal


@dataclasses.dataclass
class TransposeForm:
    """One inlined pass over the output that reads an input transposed; axes are collapsed.

    Attributes:
        sch: Its schedule.
        facts: Facts of its block.
        read: The transposed read.
        source: The axis that is contiguous in ``read``.
        target: The axis that is contiguous in the output.
    """

    sch: s_tir.Schedule
    facts: BlockFacts
    read: Access
    source: int
    target: int


def prepare_transpose(func: tirx.PrimFunc) -> TransposeForm | Refusal:
    """Return the transpose form of ``func``, of which exactly one input must be transposed."""
    found = one_elementwise_block(func)
    if isinstance(found, Refusal):
        return found
    sch, block = found
    _collapse(sch, block)
    facts = block_facts(sch, block)
    read = None if any(facts.conditional) else transposed_read(facts)
    if read is None:
        return Refusal("not exactly one of its inputs is transposed")
    target = max(i for i, a in enumerate(facts.axes) if a.extent > 1)
    source = next(i for i, s in enumerate(read.strides) if s == 1 and facts.axes[i].extent > 1)
    return TransposeForm(sch, facts, read, source, target)


NAME = "gpu_transpose"


def emit(func: tirx.PrimFunc, config: TransposeConfig) -> s_tir.Schedule | Refusal:
    """Schedule ``func``, which transposes an input.

    Before -> after, with tiles of 64 x 64::

        for i, j: Y[i, j] = X[j, i]

        for b in blockIdx.x:
            for ... in threadIdx.x: shared[j, i] = X[...]     (rows padded by 2)
            for ... in threadIdx.x: Y[...] = shared[j, i]
    """
    form = prepare_transpose(func)
    if isinstance(form, Refusal):
        return form
    sch, facts, read = form.sch, form.facts, form.read
    source, target = form.source, form.target
    block = sch.get_sblock(facts.name)
    most = config.vector_elements
    wide = math.gcd(math.gcd(most, config.tile[0]), _run(facts, read, source))
    vector = math.gcd(math.gcd(most, config.tile[1]), _run(facts, facts.write, target))
    regions = sch.get(block).reads
    index = next(n for n, r in enumerate(regions) if r.source.same_as(read.buffer))
    used = [i for i, s in enumerate(read.strides) if s != 0 and i not in (source, target)]

    def layout(*indices: tirx.Var) -> list[tirx.Var]:
        return [*(indices[i] for i in used), indices[target], indices[source]]

    tile = sch.reindex_cache_read(block, index, "shared", index_map(sch, block, layout))
    place = sorted([*used, source, target]).index(source)
    loads = _load_pieces(sch, tile, place, wide) if wide > 1 else None
    result = cache_result_along(sch, block, target, vector) if vector > 1 else None
    loops = sch.get_loops(block)
    sources, s = sch.split(loops[source], [None, config.tile[0]])
    targets, t = sch.split(loops[target], [None, config.tile[1]])
    others = [loop for i, loop in enumerate(loops) if i not in (source, target)]
    sch.reorder(*others, targets, sources, s, t)
    grid = fuse_all(sch, [*others, targets, sources])
    sch.bind(grid, "blockIdx.x")
    x = _bind_elements(sch, [s, t], vector, config.threads)
    if result is not None:
        store_at(sch, result, x)
    sch.compute_at(tile, grid, preserve_unit_loops=True)
    inside = sch.get_loops(tile)[1:]
    inside = [*(loop for i, loop in enumerate(inside) if i != place), inside[place]]
    sch.reorder(*inside)
    x = _bind_elements(sch, inside, wide, config.threads)
    if loads is not None:
        load_at(sch, [loads], x)
    sch.storage_align(tile, 0, len(used), 32, config.row_padding)
    return sch


def _run(facts: BlockFacts, access: Access, axis: int) -> int:
    """Return the longest vector along ``axis``: contiguous and aligned at every multiple."""
    run = 16
    while run > 1 and not moves_by_vectors(facts, access, axis, run):
        run //= 2
    return run


def _bind_elements(sch: s_tir.Schedule, loops: list[LoopRV], vector: int, threads: int) -> LoopRV:
    """Distribute the elements of a tile to the threads, ``vector`` at a time.

    Returns:
        The loop over the threads.
    """
    outer, lane = sch.split(loops[-1], [extent(sch, loops[-1]) // vector, vector])
    _, x = sch.split(fuse_all(sch, [*loops[:-1], outer]), [None, threads])
    sch.bind(x, "threadIdx.x")
    if vector > 1:
        sch.unroll(lane)
    return x


def _load_pieces(sch: s_tir.Schedule, tile: SBlockRV, place: int, wide: int) -> SBlockRV:
    """Make the block that fills the tile read registers, loaded in vectors along axis ``place``."""
    how = in_pieces(sch, tile, place, wide)
    loads = sch.reindex_cache_read(tile, 0, "local", how)
    sch.transform_block_layout(loads, how)
    return loads


def transposed_read(facts: BlockFacts) -> Access | None:
    """Return the transposed read; None unless there is exactly one."""
    target = max((i for i, a in enumerate(facts.axes) if a.extent > 1), default=-1)
    if target < 0 or facts.write.strides[target] != 1:
        return None
    found = []
    for read in facts.reads:
        if any(s is None for s in read.strides):
            return None
        sources = [i for i, s in enumerate(read.strides) if s == 1 and facts.axes[i].extent > 1]
        if sources and sources[0] != target and read.strides[target] != 0:
            found.append(read)
    return found[0] if len(found) == 1 else None


def _collapse(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Fuse adjacent axes that every access walks as one."""
    again = True
    while again:
        again = False
        facts = block_facts(sch, block)
        accesses = [facts.write, *facts.reads]
        for i in range(len(facts.axes) - 1):
            size = facts.axes[i + 1].extent
            if all(_follows(a, i, size) or facts.axes[i].extent == 1 for a in accesses):
                sch.transform_block_layout(block, index_map(sch, block, _joined(i, size)))
                again = True
                break


def _joined(place: int, size: int) -> Callable[..., list[ir.Expr]]:
    """Return the map that fuses axis ``place`` with the next axis, of ``size`` steps."""

    def join(*axes: tirx.Var) -> list[ir.Expr]:
        return [*axes[:place], axes[place] * size + axes[place + 1], *axes[place + 2 :]]

    return join


def _follows(access: Access, place: int, size: int) -> bool:
    """Whether a step of axis ``place`` equals all ``size`` steps of the next axis."""
    outer, inner = access.strides[place], access.strides[place + 1]
    return outer is not None and inner is not None and outer == inner * size
