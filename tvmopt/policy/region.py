"""How much memory a tile reads: the tile propagated through the indices of an access."""

from __future__ import annotations

import math

from tvmopt.schedule.analysis import Access, BlockFacts


def region_bytes(access: Access, facts: BlockFacts, positions: dict[int, int]) -> float:
    """Bytes of the box that ``positions`` elements of the data-parallel axes read."""
    buffer = access.buffer
    itemsize = buffer.dtype.itemsize
    shape = [int(e) for e in buffer.shape]
    steps = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    span = [1] * len(shape)
    place = {i: position for position, i in enumerate(facts.spatial)}
    for i, axis in enumerate(facts.axes):
        stride = access.strides[i]
        extent = axis.extent if axis.reduce else positions.get(place.get(i, -1), 1)
        if not stride or extent == 1:
            continue
        for d, step in enumerate(steps):
            if abs(stride) >= step:
                span[d] += (extent - 1) * abs(stride) // step
                break
    return itemsize * math.prod(min(s, e) for s, e in zip(span, shape, strict=True))
