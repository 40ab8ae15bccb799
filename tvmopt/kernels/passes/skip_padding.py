"""Max and min pooling skip padded elements, as in ONNX Runtime.

TVM pads with the smallest finite number, and a running maximum of NaN is replaced by the next
element (:mod:`tvmopt.kernels.passes.keep_nan`). A pooling window of NaN that ends in padding would
return -3.4e38. The pass rewrites lowered functions::

    m[i] = max(m[i], x[j] if inside else -3.4e38)   ->   m[i] = max(m[i], x[j]) if inside else m[i]

Padding that a schedule materialises in a buffer stays; :func:`padded_buffers` finds these buffers.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

_IF_THEN_ELSE = "prim.if_then_else"


def skip_padding(body: Any) -> Any:
    """Return the lowered ``body`` with max and min reductions that skip padding."""
    return tvm_ffi.structural_map(body, (tirx.BufferStore, _on_store), order="post")


def padded_buffers(body: Any) -> set[tirx.Buffer]:
    """Return the buffers of ``body`` that store the padding value of a maximum or minimum."""
    found = set()

    def note(store: tirx.BufferStore) -> None:
        value = store.value
        ends = [value]
        if is_if_then_else(value):
            ends = list(value.args[1:])
        elif isinstance(value, tirx.Select):
            ends = [value.true_value, value.false_value]
        for end in ends:
            constant = constant_of(end)
            if constant is not None and constant in (
                identity(tirx.Max, end), identity(tirx.Min, end)
            ):  # fmt: skip
                found.add(store.buffer)

    tvm_ffi.structural_walk(body, (tirx.BufferStore, note), order="post")
    return found


def is_if_then_else(expr: ir.Expr) -> bool:
    """Return whether ``expr`` is an ``if_then_else``, which evaluates only one of its branches."""
    return isinstance(expr, ir.Call) and getattr(expr.op, "name", "") == _IF_THEN_ELSE


def is_read(expr: ir.Expr, store: tirx.BufferStore) -> bool:
    """Return whether ``expr`` loads the element that ``store`` overwrites."""
    return (
        isinstance(expr, ir.TensorLoad)
        and expr.source.same_as(store.buffer)
        and tvm_ffi.structural_equal(expr.indices, store.indices)
    )


def constant_of(expr: ir.Expr) -> float | None:
    """Return the value of a floating-point constant, scalar or broadcast; otherwise None."""
    if isinstance(expr, tirx.Broadcast):
        expr = expr.value
    return float(expr.value) if isinstance(expr, tirx.FloatImm) else None


def identity(kind: type, like: ir.Expr) -> float:
    """Return TVM's identity element, and padding value, for Max or Min in the dtype of ``like``."""
    dtype = str(like.ty.dtype).partition("x")[0]
    limit = tirx.min_value(dtype) if kind is tirx.Max else tirx.max_value(dtype)
    return float(limit.value)


def _on_store(store: tirx.BufferStore) -> tirx.BufferStore:
    value = store.value
    if not isinstance(value, tirx.Max | tirx.Min) or "float" not in str(value.ty.dtype):
        return store
    for so_far, element in ((value.a, value.b), (value.b, value.a)):
        if is_read(so_far, store) and is_if_then_else(element):
            inside, read, padding = element.args
            if constant_of(padding) == identity(type(value), value):
                new = tirx.if_then_else(inside, type(value)(so_far, read), so_far)
                return tirx.BufferStore(store.buffer, new, store.indices)
    return store
