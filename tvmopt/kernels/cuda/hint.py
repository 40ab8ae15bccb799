"""CudaHint: one configuration of a CUDA kernel family."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.hint import Hint


@dataclasses.dataclass(frozen=True)
class CudaHint(Hint):
    """Configuration of a CUDA kernel template. Fields that a template does not use keep defaults.

    Attributes:
        template: Name of the template.
        arch: The GPU for which the numbers were chosen.
        block: Elements of each spatial axis that a thread block computes, with axes as the
            template normalises them (for a GEMM: rows and columns).
        thread: Threads along each of these axes.
        warp: Elements of each of these axes that a warp or warpgroup computes with tensor cores.
        rstep: Elements of the reduction in one shared-memory stage; 0 without shared memory.
        reduce_threads: Threads that share one reduction; 1 for none.
        vector: Elements of a vector access of a thread.
        stages: Pipeline stages of the reduction; 1 without pipelining.
        async_copy: Whether stages are filled with cp.async.
        split_k: Split-K factor.
        raster: Rows of thread blocks in a raster group, for L2 reuse; 0 for row-major order.
        swap: Whether A and B are swapped, for few rows.
        cluster: Cluster size; these thread blocks multicast the second operand.
        options: Options of one template, by name.
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
        """Return the value of option ``name``."""
        return dict(self.options).get(name, default)

    @property
    def group(self) -> tuple[object, ...]:
        """Vector length and reduction strategy: configurations for which cost models err alike."""
        share = self.reduce_threads > self.arch.warp, self.reduce_threads > 1
        return self.template, self.vector, share, self.split_k > 1, self.options

    @property
    def features(self) -> list[float]:
        """The configuration as numbers, for the learned ranker."""
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
        """Return the fields that differ from their defaults, and the options by name."""
        shown = super().shown()
        shown.pop("options", None)
        return shown | dict(self.options)
