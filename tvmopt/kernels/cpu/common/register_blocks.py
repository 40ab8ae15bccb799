"""Shapes of a contraction's register tile: widths that fill lanes, rows that fit the registers."""

from __future__ import annotations

import math

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import ContractionForm
from tvmopt.kernels.cpu.common.stage import divisors

# Minimum lane utilisation of a tile width, unless no width reaches it.
_GOOD_USE = 0.8
_MOST_VECTORS = 16
# If the best row divisor is below this fraction of the rows that fit the registers, row counts with
# a partial last tile are tried, too; for several vectors per row, and for one.
_FULL, _HALF = 0.8, 0.5
# Fraction of the registers that the accumulators of a partial last tile may use.
_REST = 0.6


def tile_widths(form: ContractionForm, arch: CpuArch) -> list[int]:
    """Return the tile widths: divisors of the vectorised axis with good lane utilisation."""
    extent = form.facts.axes[form.vector].extent
    lanes = arch.lanes(form.facts.dtype)
    found: dict[int, float] = {}
    for width in range(1, min(extent, _MOST_VECTORS * lanes) + 1):
        if extent % width == 0 and form.run % width == 0:
            found[width] = width / (math.ceil(width / lanes) * lanes)
    best = max(found.values())
    return [w for w, use in found.items() if use >= min(_GOOD_USE, best)]


def row_blocks(
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
    for count in row_counts(size[inner], most, rest, near):
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


def row_counts(extent: int, most: int, rest: int, near: float) -> list[int]:
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
