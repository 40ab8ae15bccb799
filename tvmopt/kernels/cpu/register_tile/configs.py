"""Configuration space of the register-tile template, with predicted cycles."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.prefetch_distance import bytes_ahead
from tvmopt.kernels.cpu.common.stage import divisors
from tvmopt.kernels.cpu.hint import CpuHint
from tvmopt.kernels.cpu.register_tile.cost import RegisterTileModel
from tvmopt.kernels.cpu.register_tile.schedule import NAME
from tvmopt.kernels.ranked import Ranked

# Minimum lane utilisation of a tile width, unless no width reaches it.
_GOOD_USE = 0.8
_MOST_VECTORS = 16
# (task, order, parallel, stage) of a hint.
_Nest = tuple[tuple[int, ...], tuple[int, ...], int, int]
# If the best row divisor is below this fraction of the rows that fit the registers, row counts with
# a partial last tile are tried, too; for several vectors per row, and for one.
_FULL, _HALF = 0.8, 0.5
# Fraction of the registers that the accumulators of a partial last tile may use.
_REST = 0.6
# Maximum tiles whose partial sums stay in memory during one K block.
_MOST_REPEATS = 64
# Fraction of L1 for a K block of the weight; fractions of L2 for a cache block of the data.
_RESIDENT, _PARTS = 0.7, (0.125, 0.25, 0.5)


def register_tile_hints(form: ContractionForm, arch: CpuArch) -> list[Ranked[CpuHint]]:
    """Return the configurations of ``form`` with predicted cycles, unordered."""
    model = RegisterTileModel(form, arch)
    return [model.rank(hint) for hint in _hints(form, arch)]


def _hints(form: ContractionForm, arch: CpuArch) -> Iterator[CpuHint]:
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
            if whole and not has_stage:  # TVM cannot partition a partial tile inside a cache block
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


def _pack(form: ContractionForm, width: int, arch: CpuArch) -> str:
    if form.constant:
        return "constant"
    if form.dot(arch):
        return "call"
    whole = width % arch.lanes(form.facts.dtype) == 0
    if whole and form.weight.strides[form.vector] == 1:
        rows = math.prod(form.facts.axes[i].extent for i in form.rows)
        if rows < 64:  # too little reuse to pay for packing
            return "none"
    return "call"


def _widths(form: ContractionForm, arch: CpuArch) -> list[int]:
    """Return the tile widths: divisors of the vectorised axis with good lane utilisation."""
    extent = form.facts.axes[form.vector].extent
    lanes = arch.lanes(form.facts.dtype)
    found: dict[int, float] = {}
    for width in range(1, min(extent, _MOST_VECTORS * lanes) + 1):
        if extent % width == 0 and form.run % width == 0:
            found[width] = width / (math.ceil(width / lanes) * lanes)
    best = max(found.values())
    return [w for w, use in found.items() if use >= min(_GOOD_USE, best)]


def _row_blocks(
    form: ContractionForm, rows: list[int], vectors: int, arch: CpuArch
) -> list[dict[int, int]]:
    """Return the row blocks of a register tile, each as {position of the axis: rows}."""
    extents = [form.facts.axes[form.facts.spatial[p]].extent for p in rows]
    most = max(1, (arch.vector_registers - 1 - vectors) // vectors)
    wide = [p for p, e in zip(rows, extents, strict=True) if e > 1][-2:]
    if not wide:
        return [{}]
    size = dict(zip(rows, extents, strict=True))
    inner = wide[-1]
    blocks: list[dict[int, int]] = []
    rest = int(arch.vector_registers * _REST) // vectors
    # Tiles of one vector are load-bound: a partial last tile pays only if divisors are very small.
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
    """Return row counts: the larger divisors of ``extent``; non-divisors, too, if all are small.

    Args:
        extent: Rows of the axis.
        most: Maximum rows of a tile.
        rest: Preferred maximum rows of a partial last tile.
        near: Fraction of ``most`` at which a divisor is large enough.
    """
    even = divisors(extent, most)
    counts = {d for d in even if d * 3 >= most} or {even[-1]}
    if even[-1] < near * min(most, extent):
        # Prefer a small partial tile; LLVM spills the accumulators of a large one.
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
    """Yield (loop order, number of parallel loops, compute_at depth of the producers).

    Args:
        extents: Extents of the data-parallel axes.
        block: Register tile.
        rows: Positions of the axes that reuse the weight.
        columns: Positions of the axes that reuse the data.
        has_stage: Whether the anchor has producers.
        arch: The CPU.
    """
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
    form: ContractionForm,
    extents: list[int],
    block: list[int],
    rows: list[int],
    columns: list[int],
    arch: CpuArch,
) -> list[_Nest]:
    """Return cache-blocked nests: all columns for a block of rows whose data stays in L2.

    Returns:
        (task, order, parallel, stage) of each nest.
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
    """Return an axis's cache block: whole tiles, at most ``most`` elements, a divisor if near."""
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
    form: ContractionForm,
    block: list[int],
    counts: list[int],
    order: tuple[int, ...],
    most_within: int,
    arch: CpuArch,
) -> Iterator[tuple[int, int]]:
    """Yield K blockings as (``rstep``, ``accumulate``) of a hint.

    Args:
        form: The contraction.
        block: The register tile.
        counts: Tiles of each axis, or of its cache block.
        order: Order of the tile loops.
        most_within: Maximum tile loops inside the K-block loop.
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
