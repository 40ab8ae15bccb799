"""DRAM traffic of fused attention."""

from __future__ import annotations

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.attention.problem import AttentionProblem

_BYTES = 2


def dram_cycles(problem: AttentionProblem, arch: CudaArch) -> float:
    """Return the cycles in which DRAM reads Q, K and V once, and writes the output."""
    p = problem
    rows = p.batch * p.heads * p.queries * (p.head_size + p.value_size)
    rate = arch.dram_bytes_cycle * arch.costs.stream_bandwidth_share
    return (p.cache_bytes() + _BYTES * rows) / rate
