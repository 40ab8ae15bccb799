"""Memory footprint of a tile: the tile's bounds propagated through the indices of an access.

Also the footprint's part that another core wrote: a read from a near core's cache takes 20 ns per
line, from behind another cache 200 ns, and prefetching does not hide this latency.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.analysis import Access, BlockFacts
from tvmopt.kernels.cpu.common.cost import FILL


class Region:
    """Footprint of an anchor's tiles in one buffer.

    Args:
        access: The read access.
        facts: Facts of the anchor.
    """

    def __init__(self, access: Access, facts: BlockFacts) -> None:
        self._shape = [int(e) for e in access.buffer.shape]
        self._itemsize = access.buffer.dtype.itemsize
        steps = [math.prod(self._shape[d + 1 :]) for d in range(len(self._shape))]
        self._least = [1] * len(self._shape)
        # (index of the axis in a tile, dimension, stride in elements of that dimension)
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
        """Return the bytes of the bounding box that a tile reads.

        Args:
            tile: Elements of each data-parallel axis.

        Returns:
            Bytes; a tile of 8 x 8 x 16 of a 3 x 3 depthwise convolution reads 10 x 10 x 16 elements
            of the input.
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
        """Return the bytes that one core reads from the caches of other cores.

        The model assumes that the buffer's producer was parallel along the outermost dimension, as
        most functions are. A consumer with the same partition finds most data in its own cache.

        Args:
            extents: Extents of the data-parallel axes.
            shares: Axis and trip count of each parallel loop, outermost first. The fused loop is
                partitioned into one contiguous range per core.
            arch: Supplies the number of cores and the L2 size.

        Returns:
            Bytes: 0 if a core's part exceeds its L2, or for a 1 x 1 convolution parallel over rows;
            half of the data if two cores are parallel over output channels.
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
        """Clip ``span`` to the shape; carry the overflow of a dimension into the one before it."""
        box = list(span)
        for d in reversed(range(len(box))):
            if d and box[d] > self._shape[d]:
                box[d - 1] += (box[d] - 1) // self._shape[d]
            box[d] = min(box[d], self._shape[d])
        return box
