"""Maxima and minima over a window leave padding out, as ONNX Runtime's do.

TVM pads with the smallest finite number, and the maximum of NaN and of what follows it is what
follows (:mod:`tvmopt.kernels.passes.keep_nan`): a window of NaN whose last element is padding would
give -3.4e38. So on lowered functions::

    m[i] = max(m[i], x[j] if inside else -3.4e38)   ->   m[i] = max(m[i], x[j]) if inside else m[i]

Padding that a schedule writes to memory stays as it is: :func:`padded_buffers` says where.
"""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import ir, tirx

_IF_THEN_ELSE = "prim.if_then_else"


def skip_padding(body: Any) -> Any:
    """``body``, lowered, with reductions that leave padding out."""
    return tvm_ffi.structural_map(body, (tirx.BufferStore, _on_store), order="post")


def padded_buffers(body: Any) -> set[tirx.Buffer]:
    """Buffers of ``body`` that hold what a maximum or minimum is padded with."""
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
    """Whether ``expr`` is ``condition ? a : b`` of which only one is evaluated."""
    return isinstance(expr, ir.Call) and getattr(expr.op, "name", "") == _IF_THEN_ELSE


def is_read(expr: ir.Expr, store: tirx.BufferStore) -> bool:
    """Whether ``expr`` is what ``store`` overwrites."""
    return (
        isinstance(expr, ir.TensorLoad)
        and expr.source.same_as(store.buffer)
        and tvm_ffi.structural_equal(expr.indices, store.indices)
    )


def constant_of(expr: ir.Expr) -> float | None:
    """The value of a floating-point constant, or of one in all lanes of a vector."""
    if isinstance(expr, tirx.Broadcast):
        expr = expr.value
    return float(expr.value) if isinstance(expr, tirx.FloatImm) else None


def identity(kind: type, like: ir.Expr) -> float:
    """With what TVM begins, and pads, a maximum or minimum of the type of ``like``."""
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
