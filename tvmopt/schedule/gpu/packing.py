"""A factor of a product copied to memory first, where it lies aligned, in whole tiles.

Rows that do not start at multiples of 16 bytes can be read element by element only. A product reads
each of them many times, a kernel that copies them to rows that do start so reads them once; it also
does what is to be done with an element, as a conversion, once, and puts bytes in order along k.
"""

from __future__ import annotations

import dataclasses

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvmopt.arch.cuda import itemsize

from .product import VECTOR_BYTES, Operand, inline_producers

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


def pack(sch: s_tir.Schedule, copy: SBlockRV, along_k: bool) -> None:
    """Make what ``copy`` reads a kernel of its own.

    Before -> after::

        for s, x, k: P[s, x, k] = A[...] if x < 1001 and k < 1001 else 0

        for block, n, thread: P[s, x, k] = ...

    Args:
        sch: The schedule.
        copy: From what is packed to shared memory.
        along_k: Whether elements are to lie side by side along k.
    """
    (block,) = sch.get_producers(copy)
    inline_producers(sch, block)
    if not along_k:
        sch.transform_layout(block, ("write", 0), lambda s, x, k: (s, k, x))
    s, x, k = sch.get_loops(block)
    order = (x, k) if along_k else (k, x)
    sch.reorder(s, *order)
    fused = sch.fuse(s, *order)
    outer, each, thread = sch.split(fused, [None, _EACH, _THREADS])
    sch.bind(outer, "blockIdx.x")
    sch.unroll(each)
    sch.bind(thread, "threadIdx.x")
