"""Thread-local register promotion: drop the thread index of registers that threads do not share.

A schedule indexes a row by step and thread. Where TVM cannot prove that a thread reads only its own
elements, it gives every thread registers for the elements of all threads. Without the thread index,
each thread keeps one.
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

#: Annotation of a block that fills registers whose last index is the thread.
OWN = "tvmopt.own_parts"


def mark_thread_local(sch: s_tir.Schedule, block: SBlockRV) -> None:
    """Mark that each thread reads the output of ``block`` only at its own last index."""
    sch.annotate(block, OWN, 1)


def promote_to_registers(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Set the last index of the registers that :func:`mark_thread_local` marked to zero.

    Before -> after, for a row of 197 elements and 32 threads::

        X_local[step, thread] = X[step * 32 + thread]
        X_local[step, 0] = X[step * 32 + thread]
    """
    marked: list[tirx.Buffer] = []

    def on_block(block: s_tir.SBlock) -> None:
        if OWN in block.annotations:
            marked.append(block.writes[0].source)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, on_block), order="post")
    if not marked:
        return func

    def is_marked(buffer: object) -> bool:
        return any(one.same_as(buffer) for one in marked)

    def at(indices: list[ir.Expr]) -> list[ir.Expr]:
        *others, last = indices
        return [*others, tirx.IntImm(str(last.ty.dtype), 0)]

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        return load.source[tuple(at(load.indices))] if is_marked(load.source) else load

    def on_store(store: tirx.BufferStore) -> tirx.BufferStore:
        if not is_marked(store.buffer):
            return store
        return tirx.BufferStore(store.buffer, store.value, at(store.indices))

    def on_region(region: ir.TensorRegion) -> ir.TensorRegion:
        if not is_marked(region.source):
            return region
        zero = tirx.IntImm(str(region.region[-1].min.ty.dtype), 0)
        last = ir.Range.from_min_extent(zero, tirx.IntImm(str(zero.ty.dtype), 1))
        return tirx.BufferRegion(region.source, [*region.region[:-1], last])

    body = tvm_ffi.structural_map(
        func.body,
        [(ir.TensorLoad, on_load), (tirx.BufferStore, on_store), (ir.TensorRegion, on_region)],
        order="post",
    )
    return func.with_body(body)
