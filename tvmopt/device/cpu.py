"""CpuArch: descriptor of a CPU for schedules and cost models, probed or built from a name."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmopt.device import dtypes
from tvmopt.device.arch import Arch
from tvmopt.device.llvm import llvm_features, llvm_target

#: Bytes of a cache line of x86 CPUs.
CACHE_LINE_BYTES = 64
# CPUs of which an FMA on 512 bits takes both ports of 256 bits (AMD, Software Optimization Guide
# for the AMD Zen4 Microarchitecture, publication 57647).
_HALF_WIDTH_PORTS = ("znver4",)


@dataclasses.dataclass(frozen=True)
class CpuArch(Arch):
    """Descriptor of one CPU target.

    Attributes:
        mcpu: LLVM's CPU name, e.g. ``"sapphirerapids"``.
        isa: Instruction-set architecture, ``"x86_64"``, ``"aarch64"``, ...
        cores: Threads that a kernel may use.
        simd_bits: Width in bits of the vector registers that kernels use.
        vector_registers: Number of architectural vector registers of that width.
        l1_bytes: L1 data cache of one core, in bytes.
        l2_bytes: L2 cache of one core, in bytes.
        l3_bytes: Last-level cache shared by the cores, in bytes.
        fma_ports: Vector FMAs issued per cycle, as the cost models are fitted; the peak is
            :attr:`peak_fmas`.
        fma_latency: Latency of an FMA in cycles.
        load_ports: Vector loads issued per cycle.
        l1_bandwidth: L1 bandwidth of one core, in bytes per cycle.
        l2_bandwidth: L2 bandwidth of one core, in bytes per cycle.
        l3_bandwidth: L3 bandwidth of one core, in bytes per cycle.
        dram_bandwidth: DRAM bandwidth of one core, in bytes per cycle.
        mattr: Features added or removed, in LLVM's notation.
        mtriple: LLVM's target triple; empty for the host.
    """

    kind = "llvm"
    is_on_boards = True
    needs_fallback = True

    mcpu: str
    isa: str
    cores: int
    simd_bits: int
    vector_registers: int
    l1_bytes: int = 32 * 1024
    l2_bytes: int = 1024 * 1024
    l3_bytes: int = 16 * 1024 * 1024
    fma_ports: int = 2
    fma_latency: int = 4
    load_ports: int = 2
    l1_bandwidth: float = 64.0
    l2_bandwidth: float = 48.0
    l3_bandwidth: float = 20.0
    dram_bandwidth: float = 8.0
    mattr: tuple[str, ...] = ()
    mtriple: str = ""

    @property
    def simd_bytes(self) -> int:
        """Bytes of one vector register."""
        return self.simd_bits // 8

    def to_tvm(self) -> Any:
        """Return the ``tvm.target.Target`` of this CPU."""
        return llvm_target(self.mcpu, self.mattr, self.cores, mtriple=self.mtriple)

    def features(self) -> frozenset[str]:
        """Return all features of the CPU, in LLVM's names."""
        return llvm_features(self.mcpu, self.mattr, self.mtriple)

    @property
    def peak_fmas(self) -> int:
        """Return the vector FMAs that a core completes per cycle at its peak."""
        halves = self.mcpu in _HALF_WIDTH_PORTS and self.simd_bits == 512
        return self.fma_ports // 2 if halves else self.fma_ports

    @property
    def broadcasts_in_fma(self) -> bool:
        """Whether an FMA takes a scalar of memory or of a vector, as in AVX-512 and NEON."""
        return self.isa != "x86_64" or self.vector_registers > 16

    def lanes(self, dtype: str) -> int:
        """Return the elements of ``dtype`` per vector register (at least 1)."""
        return max(1, self.simd_bits // dtypes.dtype(dtype).lane_bits)
