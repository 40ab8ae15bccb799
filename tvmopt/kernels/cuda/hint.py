"""CudaHint: one configuration of a CUDA kernel family."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.hint import Hint


@dataclasses.dataclass(frozen=True)
class CudaHint(Hint):
    """What a GPU template is told. A field that a template has no use for keeps its default.

    Attributes:
        template: Name of the template.
        arch: The GPU that the numbers were chosen for.
        block: Elements of each data-parallel axis that one thread block computes, the axes as the
            template normalises them (of a matrix product: rows and columns).
        thread: Threads along each of these axes.
        warp: Elements of each of these axes that one warp, or warpgroup, computes by tensor cores.
        rstep: Elements of the reduction that one step stages in shared memory; 0 is no staging.
        reduce_threads: Threads that share one reduction; 1 is none.
        vector: Elements that a thread moves at once.
        stages: Steps of the reduction that are in flight, 1 is no pipelining.
        async_copy: Whether they are copied to shared memory without waiting (cp.async).
        split_k: Parts that the reduction is divided into, each of a thread block of its own.
        raster: Rows of thread blocks that run side by side, so that what they share stays in L2;
            0 is the plain order.
        swap: Whether rows and columns change places, for few rows.
        cluster: Thread blocks that share what they load of the second operand.
        options: What only one template knows, by name.
    """

    arch_type: ClassVar[type] = CudaArch

    arch: CudaArch
    block: tuple[int, ...] = ()
    thread: tuple[int, ...] = ()
    warp: tuple[int, ...] = ()
    rstep: int = 0
    reduce_threads: int = 1
    vector: int = 1
    stages: int = 1
    async_copy: bool = False
    split_k: int = 1
    raster: int = 0
    swap: bool = False
    cluster: int = 1
    options: tuple[tuple[str, int], ...] = ()

    def option(self, name: str, default: int = 0) -> int:
        """What ``options`` says of ``name``."""
        return dict(self.options).get(name, default)

    @property
    def group(self) -> tuple[object, ...]:
        """Vector length, and how threads share a reduction."""
        share = self.reduce_threads > self.arch.warp, self.reduce_threads > 1
        return self.template, self.vector, share, self.split_k > 1, self.options

    @property
    def features(self) -> list[float]:
        """The configuration in numbers, for the learned ranker."""
        numbers = [
            float(len(self.template)),
            math.log2(max(1, math.prod(self.block))),
            math.log2(max(1, math.prod(self.thread))),
            math.log2(max(1, math.prod(self.warp))),
            math.log2(max(1, self.reduce_threads)),
            math.log2(max(1, self.vector)),
            math.log2(max(1, self.split_k)),
            float(self.rstep),
            float(self.stages),
            *(float(value) for _, value in self.options[:4]),
        ]
        return numbers + [0.0] * (13 - len(numbers))

    def shown(self) -> dict[str, Any]:
        """The fields that differ from their defaults, options by name."""
        shown = super().shown()
        shown.pop("options", None)
        return shown | dict(self.options)
