"""What a CPU can do: the facts a schedule is chosen from, probed or built from a name."""

from __future__ import annotations

import dataclasses
from typing import Any

from tvmopt.device import dtypes
from tvmopt.device.llvm import llvm_features, llvm_target


@dataclasses.dataclass(frozen=True)
class CpuArch:
    """Descriptor of one CPU target.

    Attributes:
        mcpu: LLVM's name of the micro-architecture, e.g. ``"sapphirerapids"``.
        isa: Instruction-set family, ``"x86_64"``, ``"aarch64"``, ...
        cores: Threads that a kernel may use.
        simd_bits: Width in bits of the vector registers that kernels should use.
        vector_registers: Architectural vector registers of that width.
        l1_bytes: L1 data cache of one core, in bytes.
        l2_bytes: L2 cache of one core, in bytes.
        l3_bytes: Last-level cache shared by the cores, in bytes.
        fma_ports: Vector multiply-adds that start in one cycle.
        fma_latency: Cycles until the result of one can be used.
        load_ports: Vector loads in one cycle.
        l1_bandwidth: Bytes a cycle and core from L1; the next three likewise from the levels below.
        l2_bandwidth: From L2.
        l3_bandwidth: From L3.
        dram_bandwidth: From memory.
        mattr: Features added or removed, in LLVM's notation.
        mtriple: LLVM's name of the platform; empty for that of this machine.
    """

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
        """The ``tvm.target.Target`` that compiles for this CPU."""
        return llvm_target(self.mcpu, self.mattr, self.cores, mtriple=self.mtriple)

    def features(self) -> frozenset[str]:
        """Every feature of the CPU, in LLVM's names."""
        return llvm_features(self.mcpu, self.mattr, self.mtriple)

    def lanes(self, dtype: str) -> int:
        """Elements of ``dtype`` in one vector register (at least 1)."""
        return max(1, self.simd_bits // dtypes.dtype(dtype).lane_bits)
