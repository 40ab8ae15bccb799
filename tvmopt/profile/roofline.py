"""Roofline of a kernel on a CPU, with the bandwidth of the memory that holds its tensors.

A kernel's tensors usually come from a cache, where the kernel before left them. So the memory time
uses the level that the tensors fit into. See Ilic, Pratas and Sousa, "Cache-aware Roofline model",
IEEE Computer Architecture Letters 13(1), 2014.
"""

from __future__ import annotations

import dataclasses

from tvmopt.device.cpu import CpuArch
from tvmopt.device.dtypes import dtype as row_of

COMPUTE, MEMORY = "compute", "memory"
_FLOPS_PER_FMA = 2


@dataclasses.dataclass(frozen=True)
class KernelRoofline:
    """Peaks of a CPU.

    Attributes:
        arch: The CPU; its ``cores`` are the threads of a call.
        flags: Its features in Linux's names.
        hertz: Clock of a core.
    """

    arch: CpuArch
    flags: frozenset[str]
    hertz: float

    def rate(self, dtype: str) -> float:
        """Return the peak rate of multiply instructions for a dtype, relative to float32."""
        return row_of(dtype).cpu_rate(self.flags)

    def peak_flops(self, dtype: str) -> float:
        """Return the peak FLOP/s of all threads in a dtype."""
        a_cycle = _FLOPS_PER_FMA * self.arch.peak_fmas * self.arch.lanes("float32")
        return self.arch.cores * self.hertz * a_cycle * self.rate(dtype)

    def bandwidth(self, size: float) -> float:
        """Return the bytes per second of all threads, of the level that holds ``size`` bytes."""
        arch = self.arch
        levels = (
            (arch.cores * arch.l1_bytes, arch.l1_bandwidth),
            (arch.cores * arch.l2_bytes, arch.l2_bandwidth),
            (arch.l3_bytes, arch.l3_bandwidth),
        )
        a_cycle = next((rate for most, rate in levels if size <= most), arch.dram_bandwidth)
        return arch.cores * self.hertz * a_cycle

    def microseconds(self, flops: float, size: float, dtype: str) -> tuple[float, str]:
        """Return the roofline time in microseconds, and whether compute or memory bounds it."""
        compute = 1e6 * flops / self.peak_flops(dtype)
        memory = 1e6 * size / self.bandwidth(size)
        return max(compute, memory), COMPUTE if compute > memory else MEMORY
