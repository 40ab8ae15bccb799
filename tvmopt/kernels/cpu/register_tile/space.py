"""Configuration space of the register-tile family, with predicted cycles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_cost import (
    CacheBlocking,
    ContractionModel,
    ReductionSteps,
)
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.cost import split_dot_step
from tvmopt.kernels.cpu.common.loop_orders import loop_orders
from tvmopt.kernels.cpu.common.prefetch_rules import bytes_ahead
from tvmopt.kernels.cpu.common.register_blocks import row_blocks, tile_widths
from tvmopt.kernels.cpu.common.stage import divisors
from tvmopt.kernels.cpu.common.tile_config import Packing
from tvmopt.kernels.cpu.intrinsics import DotIntrinsic
from tvmopt.kernels.cpu.register_tile.config import NAME, RegisterTileConfig
from tvmopt.kernels.ranked import Ranked

# Maximum tiles whose partial sums stay in memory during one K block.
_MOST_REPEATS = 64
# Fraction of L1 for a K block of the weight; fractions of L2 for a cache block of the data.
_RESIDENT, _L2_SHARES = 0.7, (0.125, 0.25, 0.5)

# Slowdown of dot products in a tile of which the last has fewer rows: the bounds check around a
# tensor intrinsic stays in the loop, and the accumulators of the row that it guards in memory.
_PARTIAL_DOTS = 1.5


@dataclasses.dataclass(frozen=True)
class _Nest:
    """Order and cache blocking of the loops around a register tile, see RegisterTileConfig."""

    loop_order: tuple[int, ...]
    parallel_loops: int
    producer_depth: int = 0
    l2_block: tuple[int, ...] = ()


def register_tile_hints(form: ContractionForm, arch: CpuArch) -> list[Ranked[RegisterTileConfig]]:
    """Return the configurations of ``form`` with predicted cycles, unordered."""
    model, inner, dot = ContractionModel(form, arch), form.steps(arch), form.dot(arch)
    return [
        model.rank(
            hint,
            packs_weight=hint.packing == "runtime",
            blocking=CacheBlocking(
                hint.l2_block, inner // hint.k_block if hint.loops_in_k_block else 0
            ),
            unit=_split_dots(form, hint.register_tile, dot, arch),
        )
        for hint in _hints(form, arch)
    ]


def _split_dots(
    form: ContractionForm, tile: tuple[int, ...], dot: DotIntrinsic | None, arch: CpuArch
) -> ReductionSteps | None:
    """Return the reduction of a tile where a dot product takes several instructions."""
    if dot is None or dot.multiplies == 1:
        return None
    rows, vectors = math.prod(tile[:-1]), math.ceil(tile[-1] / dot.lanes)
    cycles = split_dot_step(rows, vectors, dot, arch)
    if any(extent % size for extent, size in zip(form.extents[:-1], tile[:-1], strict=True)):
        cycles *= _PARTIAL_DOTS
    return ReductionSteps(form.facts.reduced // dot.depth, cycles)


def _hints(form: ContractionForm, arch: CpuArch) -> Iterator[RegisterTileConfig]:
    facts = form.facts
    extents = form.extents
    rows = [facts.spatial.index(i) for i in form.rows]
    columns = [facts.spatial.index(i) for i in form.columns]
    last = len(extents) - 1
    has_producers = bool(form.producers)
    intrinsic = form.dot(arch)
    for width in tile_widths(form, arch):
        vectors = math.ceil(width / arch.lanes(facts.dtype))
        packing = _packing(form, width, arch)
        for row_block in row_blocks(form, rows, vectors, arch):
            tile = [1] * len(extents)
            tile[last] = width
            for position, size in row_block.items():
                tile[position] = size
            nests = [
                _Nest(*nest)
                for nest in loop_orders(extents, tile, rows, columns, has_producers, arch)
            ]
            whole = all(e % b == 0 for e, b in zip(extents, tile, strict=True))
            if whole and not has_producers:
                # TVM cannot partition a partial tile inside a cache block.
                nests += _cache_blocked(form, extents, tile, rows, columns, arch)
            for nest in nests:
                for k_block, loops_in_k_block in _k_blocks(form, tile, nest, arch):
                    yield RegisterTileConfig(
                        NAME,
                        arch,
                        register_tile=tuple(tile),
                        **vars(nest),
                        k_block=k_block,
                        loops_in_k_block=loops_in_k_block,
                        packing=packing,
                        intrinsic=intrinsic.name if intrinsic else "",
                        prefetch_bytes=bytes_ahead(math.prod(tile[:-1]), vectors, arch),
                    )


def _packing(form: ContractionForm, width: int, arch: CpuArch) -> Packing:
    if form.constant:
        return "prepacked"
    if form.dot(arch):
        return "runtime"
    whole = width % arch.lanes(form.facts.dtype) == 0
    if whole and form.weight.strides[form.vector] == 1:
        rows = math.prod(form.facts.axes[i].extent for i in form.rows)
        if rows < 64:  # too little reuse to pay for packing
            return "none"
    return "runtime"


def _cache_blocked(
    form: ContractionForm,
    extents: list[int],
    tile: list[int],
    rows: list[int],
    columns: list[int],
    arch: CpuArch,
) -> list[_Nest]:
    """Return cache-blocked nests: all columns for a block of rows whose data stays in L2."""
    wide = [p for p in range(len(extents)) if p not in columns and extents[p] > 1]
    if len(wide) != 1 or wide[0] not in rows:
        return []
    [row] = wide
    row_bytes = form.facts.reduced * form.data.buffer.dtype.itemsize
    if extents[row] * row_bytes <= arch.l2_bytes * _L2_SHARES[0]:
        return []
    order = (len(extents), *(p for p in range(len(extents)) if p != row), row)
    found: dict[int, _Nest] = {}
    for share in _L2_SHARES:
        size = _l2_block(extents[row], tile[row], int(arch.l2_bytes * share / row_bytes))
        if size == 0 or size >= extents[row]:
            continue
        enough = math.ceil(extents[row] / size) >= arch.cores
        found[size] = _Nest(
            order,
            parallel_loops=(1 if enough else len(order) - 1) * (arch.cores > 1),
            l2_block=tuple(size if p == row else 0 for p in range(len(extents))),
        )
    return list(found.values())


def _l2_block(extent: int, block: int, most: int) -> int:
    """Return an axis's cache block: whole tiles, at most ``most`` elements, a divisor if near."""
    tiles = math.ceil(extent / block)
    fit = divisors(tiles, max(1, most // block))[-1]
    loose = min(most // block, tiles)
    return block * (fit if 2 * fit > loose else loose)


def _k_blocks(
    form: ContractionForm, tile: list[int], nest: _Nest, arch: CpuArch
) -> Iterator[tuple[int, int]]:
    """Yield (``k_block``, ``loops_in_k_block``) for a register tile in ``nest``."""
    order = nest.loop_order
    sizes = [t or e for t, e in zip(nest.l2_block or form.extents, form.extents, strict=True)]
    counts = [math.ceil(e / b) for e, b in zip(sizes, tile, strict=True)]
    facts = form.facts
    yield 0, 0
    inner = form.steps(arch)
    lanes = arch.lanes(facts.dtype)
    depth = form.depth(arch)
    others = facts.reduced // (inner * depth)
    itemsize = form.weight.buffer.dtype.itemsize
    step_bytes = others * math.ceil(tile[-1] / lanes) * lanes * depth * itemsize
    if others > 1 and inner > 64:
        for step in (32, 64):
            if inner % step == 0:
                yield step, 0
    within = 0
    for p in reversed(order):
        if form.weight.strides[facts.spatial[p]] != 0:
            break
        within += 1
    within = min(within, len(order) - max(nest.parallel_loops, nest.producer_depth, 1))
    repeats = math.prod(counts[p] for p in order[len(order) - within :])
    if within and 1 < repeats <= _MOST_REPEATS and step_bytes * inner > arch.l1_bytes // 2:
        most = int(arch.l1_bytes * _RESIDENT / step_bytes)
        fitting = [s for s in divisors(inner, min(inner, most)) if s >= 4]
        for step in fitting[-2:]:
            yield step, within
