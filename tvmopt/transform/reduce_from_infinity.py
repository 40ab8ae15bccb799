"""Initialise max and min reductions with infinity, as ONNX Runtime does.

TVM initialises with the smallest or largest finite value, so that the maximum of -inf is -3.4e38.
Schedule primitives recognise a reduction by that value; therefore this pass runs after scheduling,
on lowered functions::

    m[i] = -3.4e38; ...; m[i] = max(m[i], x)   ->   m[i] = -inf; ...; m[i] = max(m[i], x)
"""

from __future__ import annotations

import tvm_ffi
from tvm import ir, tirx

from tvmopt.kernels.passes.skip_padding import constant_of, identity


def reduce_from_infinity(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return the lowered ``func`` with infinite initial values; run before max and min rewrites."""
    kinds: dict[tirx.Buffer, type] = {}

    def note(store: tirx.BufferStore) -> None:
        value = store.value
        if isinstance(value, (tirx.Max, tirx.Min)) and "float" in str(value.ty.dtype):
            for operand in (value.a, value.b):
                if isinstance(operand, ir.TensorLoad) and operand.source.same_as(store.buffer):
                    kinds[store.buffer] = type(value)

    def begin(store: tirx.BufferStore) -> tirx.BufferStore:
        kind = kinds.get(store.buffer)
        if kind is None or constant_of(store.value) != identity(kind, store.value):
            return store
        return tirx.BufferStore(store.buffer, _infinite(kind, store.value), store.indices)

    tvm_ffi.structural_walk(func.body, (tirx.BufferStore, note), order="post")
    if not kinds:
        return func
    return func.with_body(
        tvm_ffi.structural_map(func.body, (tirx.BufferStore, begin), order="post")
    )


def _infinite(kind: type, like: ir.Expr) -> ir.Expr:
    dtype, _, lanes = str(like.ty.dtype).partition("x")
    constant = tirx.const(float("-inf" if kind is tirx.Max else "inf"), dtype)
    return tirx.Broadcast(constant, int(lanes)) if lanes else constant
