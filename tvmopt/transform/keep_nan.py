"""Maxima and minima of floats keep NaN, and reductions begin at infinity.

TVM's ``max(x, c)`` is ``x > c ? x : c``, which gives ``c`` where ``x`` is NaN. So a network with
ReLU would answer an input that is NaN, or that overflows, with plausible numbers. Here::

    max(x, c)      ->  x < c ? c : x                     one operand is a constant
    max(x, y)      ->  y == y ? (x < y ? y : x) : y      neither is
    m[i] = LOWEST  ->  m[i] = -inf                       where m[i] = max(m[i], ...) follows

and ``min`` likewise. On x86 the first is still one ``vmaxps``: it returns its second operand where
one is NaN. This must be the last change of a function: TVM's simplifier takes ``y == y`` for true,
and LOWEST, the smallest finite number, is the identity by which schedules know a reduction.
"""

from __future__ import annotations

from collections.abc import Callable

import tvm
import tvm.s_tir  # registers the pipeline "s_tir"
import tvm_ffi
from tvm import ir, tirx
from tvm.tirx import compilation_pipeline

#: Name of TVM's pipeline for scheduled functions with :func:`keep_nan` at its end.
CPU_PIPELINE = "tvmopt_cpu"

_Extremum = tirx.Max | tirx.Min


def keep_nan(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """``func``, lowered, with maxima and minima that keep NaN."""
    body = reduce_from_infinity(func.body)
    for kind in (tirx.Max, tirx.Min):
        body = tvm_ffi.structural_map(body, (kind, _keeping), order="post")
    return func.with_body(body)


def reduce_from_infinity(body: tirx.Stmt) -> tirx.Stmt:
    """Let maxima and minima over an axis begin at infinity, not at the largest finite number."""
    kinds: dict[tirx.Buffer, type] = {}

    def note(store: tirx.BufferStore) -> None:
        if isinstance(store.value, _Extremum) and _is_float(store.value):
            for operand in (store.value.a, store.value.b):
                if isinstance(operand, ir.TensorLoad) and operand.source.same_as(store.buffer):
                    kinds[store.buffer] = type(store.value)

    def begin(store: tirx.BufferStore) -> tirx.BufferStore:
        kind, value = kinds.get(store.buffer), _constant(store.value)
        if kind is None or value is None or value != _limit(kind, store.value):
            return store
        infinite = _like(store.value, -float("inf") if kind is tirx.Max else float("inf"))
        return tirx.BufferStore(store.buffer, infinite, store.indices)

    tvm_ffi.structural_walk(body, (tirx.BufferStore, note), order="post")
    if not kinds:
        return body
    return tvm_ffi.structural_map(body, (tirx.BufferStore, begin), order="post")


def cpu_pipeline() -> tuple[tvm.transform.Pass, tvm.transform.Pass, tvm.transform.Pass]:
    """The passes over the module, over host functions, and over device functions."""
    lower, host, device = compilation_pipeline.get_tir_pipeline("s_tir")

    @tvm.transform.module_pass(opt_level=0, name="CpuPipeline")
    def run(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        out = lower(mod)
        for var, func in out.functions_items():
            if isinstance(func, tirx.PrimFunc):
                out.update_func(var, keep_nan(func))
        return out

    return run, host, device


compilation_pipeline.register_tir_pipeline(CPU_PIPELINE, cpu_pipeline)


def _keeping(node: _Extremum) -> ir.Expr:
    if not _is_float(node):
        return node
    a, b = node.a, node.b
    if _constant(a) is not None:
        a, b = b, a
    bound = _constant(b)
    if bound is None:
        return _bound("a", a, lambda x: _bound("b", b, lambda y: _of_two(type(node), x, y)))
    return _bound("a", a, lambda x: tirx.Select(_passes(type(node), x, b), b, x))


def _of_two(kind: type, x: ir.Expr, y: ir.Expr) -> ir.Expr:
    return tirx.Select(tirx.EQ(y, y), tirx.Select(_passes(kind, x, y), y, x), y)


def _passes(kind: type, x: ir.Expr, bound: ir.Expr) -> ir.Expr:
    """Whether ``x`` gives way to ``bound``; not where it is NaN."""
    return tirx.LT(x, bound) if kind is tirx.Max else tirx.GT(x, bound)


def _bound(name: str, value: ir.Expr, body: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """``body`` of ``value``, which is computed once."""
    if isinstance(value, tirx.Var):
        return body(value)
    var = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def _is_float(expr: ir.Expr) -> bool:
    return str(expr.ty.dtype).startswith(("float16", "float32", "float64", "bfloat16"))


def _constant(expr: ir.Expr) -> float | None:
    """Value of a constant, or of a vector of one constant; None of anything else."""
    while isinstance(expr, tirx.Broadcast | tirx.Cast):
        expr = expr.value
    return float(expr.value) if isinstance(expr, tirx.FloatImm) else None


def _limit(kind: type, like: ir.Expr) -> float:
    """What no finite number passes: TVM's identity of a maximum or minimum."""
    dtype = str(like.ty.dtype).split("x")[0]
    value = tirx.min_value(dtype) if kind is tirx.Max else tirx.max_value(dtype)
    return float(value.value)


def _like(expr: ir.Expr, value: float) -> ir.Expr:
    """The constant ``value`` in the type of ``expr``."""
    dtype, _, lanes = str(expr.ty.dtype).partition("x")
    constant = tirx.const(value, dtype)
    return tirx.Broadcast(constant, int(lanes)) if lanes else constant
