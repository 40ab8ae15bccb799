"""Loop orders of a contraction: which operand the innermost loops reuse, and what is parallel."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tvmopt.device.cpu import CpuArch


def loop_orders(
    extents: list[int],
    tile: list[int],
    rows: list[int],
    columns: list[int],
    has_producers: bool,
    arch: CpuArch,
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield (loop order, number of parallel loops, compute_at depth of the producers).

    Args:
        extents: Extents of the data-parallel axes.
        tile: Register tile.
        rows: Positions of the axes that reuse the weight.
        columns: Positions of the axes that reuse the data.
        has_producers: Whether the anchor has producers.
        arch: The CPU.
    """
    shared = [p for p in range(len(extents)) if p not in rows and p not in columns]
    trips = [math.ceil(e / b) for e, b in zip(extents, tile, strict=True)]
    seen = set()
    for cut in range(len(rows) + 1):
        order = (*shared, *rows[:cut], *columns, *rows[cut:])
        loops = tuple(p for p in order if trips[p] > 1)
        if loops in seen:
            continue
        seen.add(loops)
        for parallel in _parallel_depths([trips[p] for p in order], arch.cores):
            yield order, parallel, 0
            if has_producers and parallel:
                last = max((order.index(p) for p in rows[: max(1, cut)]), default=0)
                depth = max(parallel, 1 + last)
                if depth < len(order) and cut:
                    yield order, parallel, depth


def _parallel_depths(trips: list[int], cores: int) -> list[int]:
    if cores == 1 or math.prod(trips) == 1:
        return [0]
    depths = []
    for depth in range(1, len(trips) + 1):
        if trips[depth - 1] == 1 and depth < len(trips):
            continue
        count = math.prod(trips[:depth])
        if count >= cores:
            depths.append(depth)
        if len(depths) == 2 or count >= 16 * cores:
            break
    return [0, *depths]
