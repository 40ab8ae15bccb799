"""A factor of a product copied to memory first, where it lies aligned, in whole tiles.

Rows that do not start at multiples of 16 bytes can be read element by element only. A product reads
each of them many times, a kernel that copies them to rows that do start so reads them once; it also
does what is to be done with an element, as a conversion, once, and puts bytes in order along k.
"""

from __future__ import annotations

import dataclasses

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvmopt.device.dtypes import itemsize
from tvmopt.kernels.cuda.common.inlining import inline_producers
from tvmopt.kernels.cuda.common.product import VECTOR_BYTES, Operand

# Threads of a block, and elements that each copies.
_THREADS, _EACH = 256, 4


def packed(operand: Operand, along_k: bool) -> Operand:
    """``operand`` as the product finds it in memory once it is packed.

    Args:
        operand: As it was.
        along_k: Whether it then lies along k, else along its rows or columns.
    """
    size = itemsize(operand.dtype)
    return dataclasses.replace(
        operand,
        size=size,
        contiguous="k" if along_k else "x",
        run=int(VECTOR_BYTES / size),
        plain=True,
        padded=False,
    )


def pack(sch: s_tir.Schedule, product: SBlockRV, index: int, along_k: bool) -> SBlockRV:
    """Copy a factor to memory by a kernel of its own.

    Before -> after::

        for s, i, j: for k: C[s, i, j] += A[s, i, k] * B[s, j, k]

        for block, n, thread: P[s, i, k] = A[s, i, k] if i < 1001 and k < 1001 else 0
        for s, i, j: for k: C[s, i, j] += P[s, i, k] * B[s, j, k]

    Args:
        sch: The schedule.
        product: What multiplies.
        index: Which of its reads is copied.
        along_k: Whether threads that are neighbours copy neighbours along k, else along x.

    Returns:
        The block that copies, to an array in the order ``s, x, k``.
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
