"""Prefetch distance of the weight; :mod:`tvmopt.kernels.cpu.passes.prefetch` inserts prefetches."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch

_BYTES = 2048
# A reduction step that loads one vector is too short to pay for a prefetch instruction.
_LEAST_VECTORS = 2


def bytes_ahead(vectors: int, arch: CpuArch) -> int:
    """Return the prefetch distance in bytes for a reduction step that loads ``vectors`` vectors."""
    return _BYTES if vectors >= _LEAST_VECTORS and arch.isa == "x86_64" else 0
