"""How much memory a tile reads: the tile propagated through the indices of an access."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmopt.schedule.analysis import Access, BlockFacts


class Region:
    """What an anchor reads of one buffer.

    Args:
        access: The read.
        facts: Facts of the anchor.
    """

    def __init__(self, access: Access, facts: BlockFacts) -> None:
        self._shape = [int(e) for e in access.buffer.shape]
        self._itemsize = access.buffer.dtype.itemsize
        steps = [math.prod(self._shape[d + 1 :]) for d in range(len(self._shape))]
        self._least = [1] * len(self._shape)
        # (place in a tile, dimension, elements of it that one step moves)
        self._moves: list[tuple[int, int, int]] = []
        place = {i: position for position, i in enumerate(facts.spatial)}
        for i, axis in enumerate(facts.axes):
            stride = abs(access.strides[i] or 0)
            if not stride or axis.extent == 1:
                continue
            dimension = next(d for d, step in enumerate(steps) if stride >= step)
            step = stride // steps[dimension]
            if axis.reduce:
                self._least[dimension] += (axis.extent - 1) * step
            elif i in place:
                self._moves.append((place[i], dimension, step))
        self._known: dict[tuple[int, ...], int] = {}

    def bytes(self, tile: Sequence[int]) -> int:
        """Bytes of the box that a tile reads.

        Args:
            tile: Elements of each data-parallel axis.

        Returns:
            For a tile of 8 x 8 x 16 of a 3 x 3 depthwise convolution: 10 * 10 * 16 elements.
        """
        key = tuple(tile)
        if key not in self._known:
            span = list(self._least)
            for place, dimension, step in self._moves:
                span[dimension] += (key[place] - 1) * step
            self._known[key] = self._itemsize * math.prod(self._carried(span))
        return self._known[key]

    def _carried(self, span: list[int]) -> list[int]:
        """``span`` within the shape: what runs over a dimension goes on in the one before it."""
        box = list(span)
        for d in reversed(range(len(box))):
            if d and box[d] > self._shape[d]:
                box[d - 1] += (box[d] - 1) // self._shape[d]
            box[d] = min(box[d], self._shape[d])
        return box
