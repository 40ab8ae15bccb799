"""Compulsory memory traffic of blocks, and sizes of buffers."""

from __future__ import annotations

import math

from tvm import tirx

from tvmopt.kernels.analysis import BlockFacts


def traffic(facts: BlockFacts) -> float:
    """Return the bytes that a block reads and writes when each element moves once."""
    work = math.prod(a.extent for a in facts.axes)
    seen: list[tuple[object, int]] = []
    total = facts.stores * size_of(facts.write.buffer)
    for read in facts.reads:
        if any(read.buffer.same_as(buffer) for buffer, _ in seen):
            continue
        size = size_of(read.buffer)
        seen.append((read.buffer, size))
        total += min(size, work * int(read.buffer.dtype.itemsize))
    return float(total)


def size_of(buffer: tirx.Buffer) -> int:
    """Return the bytes of a buffer."""
    return math.prod(int(e) for e in buffer.shape) * int(buffer.dtype.itemsize)
