"""How much memory a tile reads: the tile propagated through the indices of an access.

And how much of that another core has written: one that lies near answers in 20 ns a line, one
behind another cache in 200 ns, and no prefetch hides that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import Access, BlockFacts
from tvmopt.kernels.cpu.common.cost import FILL


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

    def remote_bytes(
        self, extents: Sequence[int], shares: Sequence[tuple[int, int]], arch: CpuArch
    ) -> float:
        """Bytes that one core reads of what other cores have written.

        Whatever wrote the buffer is taken to have shared it out along its outermost dimension, as
        most functions do: one that does the same finds most of its data in its own cache.

        Args:
            extents: Of the data-parallel axes.
            shares: Axis and trips of each parallel loop, outermost first; together they are cut
                into one contiguous range a core.
            arch: Gives the cores, and what each can keep.

        Returns:
            0 where a core cannot keep its share until it is read, and for a 1 x 1 convolution whose
            rows are shared out; half of the data where two cores share its output channels.
        """
        share = self.bytes(extents) / arch.cores
        if share > FILL * arch.l2_bytes:
            return 0.0
        span, left = list(extents), arch.cores
        first = None
        for axis, trips in shares:
            parts = min(trips, left)
            if parts > 1:
                span[axis] = math.ceil(span[axis] / parts)
                first = axis if first is None else first
            left = math.ceil(left / parts)
        if first is None:
            return 0.0
        lead = next((d for d, extent in enumerate(self._shape) if extent > 1), 0)
        along = any(place == first and d == lead for place, d, _ in self._moves)
        read = self.bytes(span)
        return read - (min(read, share) if along else read / arch.cores)

    def _carried(self, span: list[int]) -> list[int]:
        """``span`` within the shape: what runs over a dimension goes on in the one before it."""
        box = list(span)
        for d in reversed(range(len(box))):
            if d and box[d] > self._shape[d]:
                box[d - 1] += (box[d] - 1) // self._shape[d]
            box[d] = min(box[d], self._shape[d])
        return box
