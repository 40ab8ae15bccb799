"""Static memory planning: place the buffers of a network in one workspace.

Greedy by size: the largest buffers are placed first, each at the lowest offset at which no buffer
lies that is live at the same time. See Pisarchyk and Lee, "Efficient Memory Management for Deep
Neural Net Inference" (2020), algorithm 3.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping

from tvmopt.codegen.network import Branch, Buffer, StaticNetwork, Step, tensors
from tvmopt.runtime.native import aligned


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """Where the buffers lie.

    Attributes:
        offsets: Offset of each buffer from the start of the workspace, in bytes; whole cache lines.
        size: Size of the workspace in bytes.
    """

    offsets: Mapping[Buffer, int]
    size: int


@dataclasses.dataclass
class _Lifetime:
    """A buffer's first and last step."""

    first: int
    last: int

    def overlaps(self, other: _Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def plan_memory(network: StaticNetwork, outside: Collection[Buffer]) -> MemoryPlan:
    """Return a plan for all buffers that a step of ``network`` uses.

    Args:
        network: The network.
        outside: Buffers that need no place.
    """
    lifetimes = _lifetimes(network)
    placed: list[tuple[int, int, _Lifetime]] = []
    offsets: dict[Buffer, int] = {}
    inside = [buffer for buffer in lifetimes if buffer not in outside]
    for buffer in sorted(inside, key=lambda b: (-network.buffers[b.number], b.number)):
        size = aligned(network.buffers[buffer.number])
        own, offset = lifetimes[buffer], 0
        taken = sorted((s, e) for s, e, other in placed if own.overlaps(other))
        for start, end in taken:
            if offset + size <= start:
                break
            offset = max(offset, end)
        placed.append((offset, offset + size, own))
        offsets[buffer] = offset
    return MemoryPlan(offsets, max((end for _, end, _ in placed), default=0))


def _lifetimes(network: StaticNetwork) -> dict[Buffer, _Lifetime]:
    found: dict[Buffer, _Lifetime] = {}
    time = 0

    def visit(steps: tuple[Step, ...]) -> None:
        nonlocal time
        for step in steps:
            time += 1
            for tensor in tensors(step):
                if isinstance(tensor, Buffer):
                    found.setdefault(tensor, _Lifetime(time, time)).last = time
            if isinstance(step, Branch):
                visit(step.then)
                visit(step.otherwise)

    visit(network.steps)
    return found
