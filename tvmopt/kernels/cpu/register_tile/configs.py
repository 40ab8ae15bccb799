"""Configurations of the register tile, with what each is expected to cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import Form
from tvmopt.kernels.cpu.common.prefetch_distance import bytes_ahead
from tvmopt.kernels.cpu.common.stage import divisors
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.register_tile.cost import RegisterTileModel
from tvmopt.kernels.cpu.register_tile.schedule import NAME
from tvmopt.kernels.ranked import Ranked

# Share of the lanes that must be in use, unless no width does better.
_GOOD_USE = 0.8
_MOST_VECTORS = 16
# ``task``, ``order``, ``parallel`` and ``stage`` of a hint.
_Nest = tuple[tuple[int, ...], tuple[int, ...], int, int]
# Share of the rows that registers allow below which a tile that leaves a rest is worth trying.
_FULL, _HALF = 0.8, 0.5
# Share of the registers that the sums of the last tile may take when it is not whole.
_REST = 0.6
# Tiles whose unfinished sums are kept for one step of the reduction.
_MOST_REPEATS = 64
# Share of L1 that one step of the weight may fill; of L2 that a part of the data may.
_RESIDENT, _PARTS = 0.7, (0.125, 0.25, 0.5)


def register_tile_hints(form: Form, arch: CpuArch) -> list[Ranked[CpuHint]]:
    """Every sensible configuration of ``form``, unordered."""
    model = RegisterTileModel(form, arch)
    return [model.rank(hint) for hint in _hints(form, arch)]


def _hints(form: Form, arch: CpuArch) -> Iterator[CpuHint]:
    facts = form.facts
    extents = form.extents
    rows = [facts.spatial.index(i) for i in form.rows]
    columns = [facts.spatial.index(i) for i in form.columns]
    last = len(extents) - 1
    has_stage = bool(form.producers)
    intrinsic = form.dot(arch)
    for width in _widths(form, arch):
        vectors = math.ceil(width / arch.lanes(facts.dtype))
        pack = _pack(form, width, arch)
        for row_block in _row_blocks(form, rows, vectors, arch):
            block = [1] * len(extents)
            block[last] = width
            for position, size in row_block.items():
                block[position] = size
            nests: list[_Nest] = [
                ((), *nest) for nest in loop_orders(extents, block, rows, columns, has_stage, arch)
            ]
            whole = all(e % b == 0 for e, b in zip(extents, block, strict=True))
            if whole and not has_stage:  # TVM cuts no part of a part off
                nests += _parts(form, extents, block, rows, columns, arch)
            for task, order, parallel, stage in nests:
                around = len(order) - max(parallel, stage, 1)
                sizes = [t or e for t, e in zip(task or extents, extents, strict=True)]
                counts = [math.ceil(e / b) for e, b in zip(sizes, block, strict=True)]
                for rstep, accumulate in _steps(form, block, counts, order, around, arch):
                    yield CpuHint(
                        NAME,
                        arch,
                        block=tuple(block),
                        task=task,
                        rstep=rstep,
                        accumulate=accumulate,
                        order=order,
                        parallel=parallel,
                        stage=stage,
                        pack=pack,
                        intrin=intrinsic.name if intrinsic else "",
                        prefetch=bytes_ahead(vectors, arch),
                    )


def _pack(form: Form, width: int, arch: CpuArch) -> str:
    if form.constant:
        return "constant"
    if form.dot(arch):
        return "call"
    whole = width % arch.lanes(form.facts.dtype) == 0
    if whole and form.weight.strides[form.vector] == 1:
        rows = math.prod(form.facts.axes[i].extent for i in form.rows)
        if rows < 64:  # each element of a copy would be used too seldom
            return "none"
    return "call"


def _widths(form: Form, arch: CpuArch) -> list[int]:
    """Widths of a tile: divisors of the vectorised axis that waste few lanes."""
    extent = form.facts.axes[form.vector].extent
    lanes = arch.lanes(form.facts.dtype)
    found: dict[int, float] = {}
    for width in range(1, min(extent, _MOST_VECTORS * lanes) + 1):
        if extent % width == 0 and form.run % width == 0:
            found[width] = width / (math.ceil(width / lanes) * lanes)
    best = max(found.values())
    return [w for w, use in found.items() if use >= min(_GOOD_USE, best)]


def _row_blocks(form: Form, rows: list[int], vectors: int, arch: CpuArch) -> list[dict[int, int]]:
    """How many rows of which axes share a tile."""
    extents = [form.facts.axes[form.facts.spatial[p]].extent for p in rows]
    most = max(1, (arch.vector_registers - 1 - vectors) // vectors)
    wide = [p for p, e in zip(rows, extents, strict=True) if e > 1][-2:]
    if not wide:
        return [{}]
    size = dict(zip(rows, extents, strict=True))
    inner = wide[-1]
    blocks: list[dict[int, int]] = []
    rest = int(arch.vector_registers * _REST) // vectors
    # Rows of one vector load so much that a rest is worth it only where divisors are far too small.
    near = _FULL if vectors > 1 else _HALF
    for count in _row_counts(size[inner], most, rest, near):
        blocks.append({inner: count})
    if len(wide) == 2:
        outer = wide[0]
        for a in range(2, min(most, size[outer]) + 1):
            if size[outer] % a:
                continue
            for b in divisors(size[inner], most // a):
                if a * b >= most // 2:
                    blocks.append({outer: a, inner: b})
    return blocks


def _row_counts(extent: int, most: int, rest: int, near: float) -> list[int]:
    """Divisors of ``extent`` in the upper range, and where there is none near ``most`` others.

    Args:
        extent: Rows.
        most: Most rows of a tile.
        rest: Most rows of the last tile, when it is not whole, where there is a choice.
        near: Share of ``most`` from which on a divisor is good enough.
    """
    even = divisors(extent, most)
    counts = {d for d in even if d * 3 >= most} or {even[-1]}
    if even[-1] < near * min(most, extent):
        # A last tile of few rows; larger ones cost several: LLVM keeps their sums in memory.
        upper = range(max(2, math.ceil(most * near)), min(most, extent) + 1)
        rests = sorted((extent % c, -c) for c in upper)
        small = [pair for pair in rests if pair[0] <= rest] or rests[:1]
        counts |= {-c for _, c in small[:2]}
    return sorted(counts)


def loop_orders(
    extents: list[int],
    block: list[int],
    rows: list[int],
    columns: list[int],
    has_stage: bool,
    arch: CpuArch,
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Orders of the tile loops, the share that runs in parallel, the place of the producers."""
    shared = [p for p in range(len(extents)) if p not in rows and p not in columns]
    tiles = [math.ceil(e / b) for e, b in zip(extents, block, strict=True)]
    seen = set()
    for cut in range(len(rows) + 1):
        order = (*shared, *rows[:cut], *columns, *rows[cut:])
        loops = tuple(p for p in order if tiles[p] > 1)
        if loops in seen:
            continue
        seen.add(loops)
        for parallel in _parallel_depths([tiles[p] for p in order], arch.cores):
            yield order, parallel, 0
            if has_stage and parallel:
                last = max((order.index(p) for p in rows[: max(1, cut)]), default=0)
                depth = max(parallel, 1 + last)
                if depth < len(order) and cut:
                    yield order, parallel, depth


def _parts(
    form: Form,
    extents: list[int],
    block: list[int],
    rows: list[int],
    columns: list[int],
    arch: CpuArch,
) -> list[_Nest]:
    """Nests that go through all columns for a part of the rows whose data stays in L2.

    Returns:
        ``task``, ``order``, ``parallel`` and ``stage`` of each.
    """
    wide = [p for p in range(len(extents)) if p not in columns and extents[p] > 1]
    if len(wide) != 1 or wide[0] not in rows:
        return []
    [row] = wide
    row_bytes = form.facts.reduced * form.data.buffer.dtype.itemsize
    if extents[row] * row_bytes <= arch.l2_bytes * _PARTS[0]:
        return []
    order = (len(extents), *(p for p in range(len(extents)) if p != row), row)
    found: dict[int, _Nest] = {}
    for share in _PARTS:
        size = _part(extents[row], block[row], int(arch.l2_bytes * share / row_bytes))
        if size == 0 or size >= extents[row]:
            continue
        task = tuple(size if p == row else 0 for p in range(len(extents)))
        enough = math.ceil(extents[row] / size) >= arch.cores
        found[size] = task, order, (1 if enough else len(order) - 1) * (arch.cores > 1), 0
    return list(found.values())


def _part(extent: int, block: int, most: int) -> int:
    """The part of an axis, in whole tiles, up to ``most`` elements; it divides when it can."""
    tiles = math.ceil(extent / block)
    fit = divisors(tiles, max(1, most // block))[-1]
    loose = min(most // block, tiles)
    return block * (fit if 2 * fit > loose else loose)


def _parallel_depths(tiles: list[int], cores: int) -> list[int]:
    if cores == 1 or math.prod(tiles) == 1:
        return [0]
    depths = []
    for depth in range(1, len(tiles) + 1):
        if tiles[depth - 1] == 1 and depth < len(tiles):
            continue
        count = math.prod(tiles[:depth])
        if count >= cores:
            depths.append(depth)
        if len(depths) == 2 or count >= 16 * cores:
            break
    return [0, *depths]


def _steps(
    form: Form,
    block: list[int],
    counts: list[int],
    order: tuple[int, ...],
    most_within: int,
    arch: CpuArch,
) -> Iterator[tuple[int, int]]:
    """Steps of the innermost reduction, and the loops that keep unfinished sums for one.

    Args:
        form: The function.
        block: The tile.
        counts: Tiles of each axis, or of a part of it.
        order: The loops over them.
        most_within: How many of these may run within a step.
        arch: The CPU.
    """
    facts = form.facts
    yield 0, 0
    inner = form.steps(arch)
    lanes = arch.lanes(facts.dtype)
    depth = form.depth(arch)
    others = facts.reduced // (inner * depth)
    itemsize = form.weight.buffer.dtype.itemsize
    step_bytes = others * math.ceil(block[-1] / lanes) * lanes * depth * itemsize
    if others > 1 and inner > 64:
        for step in (32, 64):
            if inner % step == 0:
                yield step, 0
    within = 0
    for p in reversed(order):
        if form.weight.strides[facts.spatial[p]] != 0:
            break
        within += 1
    within = min(within, most_within)
    repeats = math.prod(counts[p] for p in order[len(order) - within :])
    if within and 1 < repeats <= _MOST_REPEATS and step_bytes * inner > arch.l1_bytes // 2:
        most = int(arch.l1_bytes * _RESIDENT / step_bytes)
        fitting = [s for s in divisors(inner, min(inner, most)) if s >= 4]
        for step in fitting[-2:]:
            yield step, within
