"""Packing: copy a GEMM operand to global memory in an aligned layout of whole tiles.

Rows that do not start at multiples of 16 bytes allow only element-wise loads, and a GEMM loads each
row many times. A packing kernel loads them once and writes aligned rows. It also does elementwise
work, such as a conversion, once, and makes 8-bit operands K-major.
"""

from __future__ import annotations

import dataclasses

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.gemm_inlining import inline_producers
from tvmopt.kernels.cuda.common.gemm_operand import VECTOR_BYTES, GemmOperand

# Threads of a block; elements that each copies.
_THREADS, _EACH = 256, 4


def packed(operand: GemmOperand, along_k: bool) -> GemmOperand:
    """Return ``operand`` as the GEMM reads it after packing.

    Args:
        operand: The operand before.
        along_k: Whether the packed operand is K-major.
    """
    size = itemsize(operand.dtype)
    return dataclasses.replace(
        operand,
        size=size,
        contiguous="k" if along_k else "x",
        run=int(VECTOR_BYTES / size),
        plain=True,
        padded=False,
        period=1,
    )


def pack(sch: s_tir.Schedule, product: SBlockRV, index: int, along_k: bool) -> SBlockRV:
    """Pack an operand in a separate kernel.

    Before -> after::

        for s, i, j: for k: C[s, i, j] += A[s, i, k] * B[s, j, k]

        for block, n, thread: P[s, i, k] = A[s, i, k] if i < 1001 and k < 1001 else 0
        for s, i, j: for k: C[s, i, j] += P[s, i, k] * B[s, j, k]

    Args:
        sch: The schedule.
        product: The GEMM block.
        index: Index of the operand among its reads.
        along_k: Whether neighbouring threads copy neighbours along k, else along x.

    Returns:
        The packing block; its array has the axes ``s, x, k``.
    """
    copy = sch.cache_read(product, index, "global")
    inline_producers(sch, copy)
    s, x, k = sch.get_loops(copy)[-3:]
    order = (x, k) if along_k else (k, x)
    sch.reorder(s, *order)
    fused = sch.fuse(s, *order)
    outer, each, thread = sch.split(fused, [None, _EACH, _THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.unroll(each)
    sch.bind(thread, "threadIdx.x")
    return copy
