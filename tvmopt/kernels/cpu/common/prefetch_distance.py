"""Prefetch distance of the weight; :mod:`tvmopt.kernels.cpu.passes.prefetch` inserts prefetches."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch

_BYTES = 2048
# A reduction step that loads one vector is too short to pay for a prefetch instruction.
_LEAST_VECTORS = 2


def bytes_ahead(rows: int, vectors: int, arch: CpuArch) -> int:
    """Return the prefetch distance in bytes for a register tile; 0 is no prefetch.

    For some CPUs (``znver3``, ``alderlake``) LLVM unrolls a reduction without a prefetch by two.
    With the loads of both steps in registers, 16 registers do not hold the accumulators of 8 and
    more rows: it stores and loads them in every step, which took 1.4 to 1.6 times as long on a
    Zen 3. A prefetch keeps it from that.

    Args:
        rows: Rows of the tile.
        vectors: Vectors of a row, which a reduction step loads.
        arch: The CPU.
    """
    unrolled = 2 * rows + vectors
    spills = unrolled > arch.vector_registers and not arch.broadcasts_in_fma
    wanted = vectors >= _LEAST_VECTORS or spills
    return _BYTES if wanted and arch.isa == "x86_64" else 0
