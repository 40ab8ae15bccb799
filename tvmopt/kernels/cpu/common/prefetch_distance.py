"""How far ahead a tile fetches its weight; see :mod:`tvmopt.kernels.cpu.passes.prefetch`."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch

_BYTES = 2048
# Steps of one vector read too little for an instruction more to be worth it.
_LEAST_VECTORS = 2


def bytes_ahead(vectors: int, arch: CpuArch) -> int:
    """``prefetch`` of a hint whose steps read ``vectors`` registers of the weight."""
    return _BYTES if vectors >= _LEAST_VECTORS and arch.isa == "x86_64" else 0
