"""Whether the attention kernel is faster than separate GEMMs and softmax."""

from __future__ import annotations

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.attention import AttentionProblem
from tvmopt.kernels.cpu.attention.tiling import attention_tiling, multiply_cycles
from tvmopt.kernels.cpu.common.cost import imbalance

# Cycles of a vector of scores: exp in the kernel; exp, maximum, sum, and reads and writes of L2 in
# a separate softmax. Time of separate GEMMs by that of their multiply-adds at peak. Fit to 12
# heads of 32 and 64 values, 8 to 512 queries, one thread of a Zen 3 (2026-11-27, machine busy).
_SOFTMAX_IN_KERNEL, _SOFTMAX_ALONE, _GEMM_SLOWDOWN = 14.0, 30.0, 1.25
# Largest head: a block's Q and output stay in L1.
_LARGEST_HEAD = 256


def pays(problem: AttentionProblem, arch: CpuArch) -> bool:
    """Return whether the kernel is predicted to be faster on ``arch``.

    It computes float32 only, and reads whole tensors.
    """
    p = problem
    if p.dtype != "float32" or max(p.head_size, p.value_size) > _LARGEST_HEAD:
        return False
    if any((p.q_heads, p.k_heads, p.v_heads)):
        return False
    tiling = attention_tiling(p, arch)
    blocks = -(-p.queries // tiling.query_block)
    own = multiply_cycles(p, tiling, arch)
    own += blocks * tiling.vectors * p.keys * _SOFTMAX_IN_KERNEL
    lanes = arch.lanes("float32")
    separate = p.queries * p.keys * (p.head_size + p.value_size) / (lanes * arch.fma_ports)
    separate = separate * _GEMM_SLOWDOWN + p.queries * p.keys / lanes * _SOFTMAX_ALONE
    return own * imbalance(p.batch * p.heads * blocks, arch.cores) < separate
