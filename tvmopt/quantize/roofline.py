"""How long a layer takes at best: the larger of its arithmetic and its traffic (a roofline).

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model",
CACM 52(4), 2009. Peaks are nominal, since only their ratios decide what a conversion gains.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection

from tvmopt import host
from tvmopt.config import LOW_DTYPES
from tvmopt.device import dtypes
from tvmopt.device.target import TargetSpec

_HERTZ = 2.5e9
_BYTES_A_SECOND_PER_CORE = 10e9
_MOST_BYTES_A_SECOND = 200e9


@dataclasses.dataclass(frozen=True)
class Work:
    """What one layer computes and moves.

    Attributes:
        flops: Multiplications and additions of one run.
        elements: Elements read and written: activations, weights and the result.
    """

    flops: float
    elements: float

    def bytes(self, dtype: str) -> float:
        """Bytes moved when everything is of ``dtype``."""
        return self.elements * dtypes.itemsize(dtype)


@dataclasses.dataclass(frozen=True)
class Roofline:
    """Peaks of one CPU or GPU.

    Attributes:
        flops: Peak of float32 in operations a second.
        bandwidth: Bytes a second from memory.
        faster: How many times that peak a type reaches.
    """

    flops: float
    bandwidth: float
    faster: dict[str, float]

    def seconds(self, work: Work, dtype: str) -> float:
        """Least time of a layer."""
        peak = self.flops * self.faster.get(dtype, 1.0)
        return max(work.flops / peak, work.bytes(dtype) / self.bandwidth)


def roofline(flags: Collection[str] | None = None, cores: int = 0) -> Roofline:
    """Peaks of a CPU.

    Args:
        flags: Its features in Linux's names, ``TargetSpec.cpu_flags``; None for this machine's.
        cores: Threads to use; 0 for those of this machine.
    """
    flags = set(host.cpu_flags() if flags is None else flags)
    cores = cores or host.usable_cores()
    lanes = 16 if "avx512f" in flags else 8 if "avx2" in flags else 4
    return Roofline(
        flops=cores * _HERTZ * lanes * 2 * 2,  # two units, a multiplication and an addition each
        bandwidth=min(_MOST_BYTES_A_SECOND, cores * _BYTES_A_SECOND_PER_CORE),
        faster={
            dtype: next((r for flag, r in dtypes.dtype(dtype).cpu_rates if flag in flags), 1.0)
            for dtype in LOW_DTYPES
        },
    )


def roofline_of(target: TargetSpec) -> Roofline:
    """Peaks of a target: of its GPU, if it has one, else of its CPU."""
    gpu = target.gpu
    if gpu is None:
        return roofline(target.cpu_flags, target.threads)
    plain = gpu.fma("float32")
    return Roofline(
        flops=2e9 * gpu.sms * gpu.clock_ghz * plain,
        bandwidth=1e9 * gpu.dram_gbs,
        faster={dtype: gpu.fma(dtype) / plain for dtype in LOW_DTYPES},
    )


def work_of(flops: int | None, shapes: Collection[tuple[int, ...] | None]) -> Work | None:
    """Work of a layer of known shapes (operands and result); None when one is not known."""
    if flops is None or any(shape is None for shape in shapes):
        return None
    return Work(float(flops), float(sum(math.prod(s) for s in shapes if s is not None)))
