"""NaN-propagating maximum and minimum: ``max(x, 0)`` of NaN is NaN, as in ONNX.

TVM lowers ``Max(a, b)`` to ``a > b ? a : b``, which returns ``b`` for NaN, so Relu and Clip return
their bound. This pass runs on lowered functions, after TVM's simplifier. It rewrites each
floating-point Max (and Min, with ``>`` for ``<``)::

    before                   after                              after, AArch64
    Max(x, 0.0)              Select(x < 0.0, 0.0, x)            llvm.maximum(x, 0.0)
    Max(x, y)                Select(y is NaN, y,                llvm.maximum(x, y)
                                    Select(x < y, y, x))
    m[i] = Max(x, m[i])      m[i] = Select(m[i] > x, m[i], x)   m[i] = llvm.maximum(x, m[i])

The first line is one ``vmaxps`` on x86, which returns its second operand if unordered, and one
``fmax`` on AArch64; it holds in place, too, for ``x[i] = Max(x[i], 0.0)``. The third line, a
reduction, returns NaN only if all elements are NaN: full
propagation takes three instructions on x86, and ONNX Runtime's MaxPool and ReduceMax do not do it
either. In a padded buffer, elements that hold the padding value leave the running value alone,
since padding after a NaN would replace it (see :mod:`tvmopt.kernels.passes.skip_padding`). An
expression that is cast to an integer stays unchanged, because the cast of NaN is undefined.

On a GPU, 16-bit floats stay unchanged, too: TVM emits their max and min as functions in each CUDA
source, and :func:`keep_nan_in_source` replaces these by ``__hmax_nan`` and ``__hmin_nan``. Vectors
of more than four float32 stay unchanged, because CUDA has no boolean vectors of that length.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx

from tvmopt import host
from tvmopt.device import dtypes
from tvmopt.kernels.passes.each_function import change_each
from tvmopt.kernels.passes.skip_padding import (
    constant_of,
    identity,
    is_if_then_else,
    is_read,
    padded_buffers,
    skip_padding,
)

_LLVM = {tirx.Max: "llvm.maximum", tirx.Min: "llvm.minimum"}
_CONDITIONS = 4  # maximum lanes of a boolean vector in CUDA
# TVM's definition of max and min of 16-bit floats in each CUDA source.
_NARROW = re.compile(r"return __h([gl])t\((?:__half\(a\), __half\(b\)|a, b)\) \? a : b;")


def keep_nan_in_source(source: str) -> str:
    """Return CUDA ``source`` with NaN-propagating ``max`` and ``min`` of 16-bit floats."""

    def on_definition(found: re.Match[str]) -> str:
        return f"return __h{'max' if found.group(1) == 'g' else 'min'}_nan(a, b);"

    return _NARROW.sub(on_definition, source)


def keep_nan(mod: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the floating-point Max and Min of every lowered TensorIR function of ``mod``."""
    return change_each(mod, lambda func: keep_nan_in(func, _kind(func)))


def keep_nan_in(func: tirx.PrimFunc, kind: str) -> tirx.PrimFunc:
    """Return one lowered function with NaN-propagating Max and Min.

    Args:
        func: The function, after TVM's simplifier, which folds ``x != x`` to false, and after its
            pass that turns selects of loads into branches.
        kind: The target: ``"cuda"``; ``"aarch64"``, where ``llvm.maximum`` is one instruction;
            ``"cpu"`` for all others.
    """
    aside: dict[tirx.Var, ir.Expr] = {}

    def put_back(node: Any) -> Any:
        return tvm_ffi.structural_map(node, (tirx.Var, lambda v: aside.get(v, v)), order="post")

    def on_cast(cast: tirx.Cast) -> ir.Expr:
        if _is_float(cast) or not _is_float(cast.value) or not _has_extremum(cast.value):
            return cast
        stand_in = tirx.Var("aside", str(cast.value.ty.dtype))
        aside[stand_in] = put_back(cast.value)  # it may itself contain casts to integers
        return tirx.Cast(str(cast.ty.dtype), stand_in)

    body = tvm_ffi.structural_map(func.body, (tirx.Cast, on_cast), order="post")
    body = skip_padding(body)
    if kind == "aarch64":
        rewrite: Callable[[Any], ir.Expr] = _intrinsic
    else:
        takes = _is_select_in_cuda if kind == "cuda" else _is_float
        is_nan = _is_nan_by_bits if kind == "cuda" else _is_nan
        keeps = functools.partial(_keeps, padded=padded_buffers(body), is_nan=is_nan)
        reduction = functools.partial(_reduction, takes=takes, keeps=keeps)
        body = tvm_ffi.structural_map(body, (tirx.BufferStore, reduction), order="post")
        rewrite = functools.partial(_select, takes=takes, is_nan=is_nan)
    body = tvm_ffi.structural_map(body, [(node, rewrite) for node in _LLVM], order="post")
    return func.with_body(put_back(body) if aside else body)


def _kind(func: tirx.PrimFunc) -> str:
    """Return the ``kind`` argument of :func:`keep_nan_in` from the function's target attribute."""
    target = func.attrs["target"]
    if target.kind.name != "llvm":
        return "cuda" if target.kind.name == "cuda" else "cpu"
    triple = str(target.attrs["mtriple"]) if "mtriple" in target.attrs else ""
    return "aarch64" if (triple.split("-")[0] or host.isa()) == "aarch64" else "cpu"


def _reduction(
    store: tirx.BufferStore,
    takes: Callable[[ir.Expr], bool],
    keeps: Callable[[ir.Expr, ir.Expr, type], ir.Expr | None],
) -> tirx.BufferStore:
    """Return a reduction step in which a NaN element becomes the running maximum.

    Args:
        store: The store of the running maximum or minimum.
        takes: Whether to rewrite a Max or Min.
        keeps: Returns, for the running value, the element and the kind of extremum, the condition
            under which the running value stays although it may be NaN; or None.
    """
    value = store.value
    padded = is_if_then_else(value)  # a pooling window with padding
    extremum = value.args[1] if padded else value
    if not isinstance(extremum, tirx.Max | tirx.Min) or not takes(extremum):
        return store
    if is_read(extremum.a, store):
        so_far, element = extremum.a, extremum.b
    elif is_read(extremum.b, store):
        so_far, element = extremum.b, extremum.a
    else:
        return store
    if _is_constant(element):  # a clip in place: no reduction
        return store
    larger = isinstance(extremum, tirx.Max)
    stays = keeps(so_far, element, type(extremum))

    def chosen(x: ir.Expr) -> ir.Expr:
        new = tirx.Select(so_far > x if larger else so_far < x, so_far, x)
        return new if stays is None else tirx.Select(stays, so_far, new)

    new = _bound("x", element, chosen)
    if padded:
        new = tirx.if_then_else(value.args[0], new, value.args[2])
    return tirx.BufferStore(store.buffer, new, store.indices)


def _keeps(
    so_far: ir.Expr,
    element: ir.Expr,
    kind: type,
    padded: set[tirx.Buffer],
    is_nan: Callable[[ir.Expr], ir.Expr],
) -> ir.Expr | None:
    """Return "``element`` is padding" if it is read from a padded buffer; otherwise None.

    Of an element computed from padding, the value is not known: then a running NaN stays.
    """
    if isinstance(element, ir.TensorLoad):
        if element.source not in padded:
            return None
        dtype, _, lanes = str(element.ty.dtype).partition("x")
        return tirx.EQ(element, _constant(identity(kind, element), dtype, lanes))
    reads: list[ir.TensorLoad] = []
    tvm_ffi.structural_walk(element, (ir.TensorLoad, reads.append), order="post")
    return is_nan(so_far) if any(read.source in padded for read in reads) else None


def _constant(value: float, dtype: str, lanes: str) -> ir.Expr:
    """Return a constant, in all lanes of a vector; ``lanes`` is empty for a scalar."""
    alone = tirx.const(value, dtype)
    return tirx.Broadcast(alone, int(lanes)) if lanes else alone


def _intrinsic(extremum: Any) -> ir.Expr:
    if not _is_float(extremum):
        return extremum
    name, dtype = _LLVM[type(extremum)], str(extremum.ty.dtype)
    return tirx.call_llvm_pure_intrin(dtype, name, extremum.a, extremum.b)


def _select(
    extremum: Any, takes: Callable[[ir.Expr], bool], is_nan: Callable[[ir.Expr], ir.Expr]
) -> ir.Expr:
    if not takes(extremum):
        return extremum
    a, b = extremum.a, extremum.b
    if _is_constant(a):
        a, b = b, a
    bound = constant_of(b)
    if bound is not None and math.isnan(bound):
        return b

    def over(x: ir.Expr, y: ir.Expr) -> ir.Expr:
        """``y`` if it is the extremum; ``x`` otherwise, also if either is NaN."""
        return tirx.Select(x < y if isinstance(extremum, tirx.Max) else x > y, y, x)

    def both(x: ir.Expr) -> ir.Expr:
        return _bound("y", b, lambda y: tirx.Select(is_nan(y), y, over(x, y)))

    return _bound("x", a, (lambda x: over(x, b)) if _is_constant(b) else both)


def _bound(name: str, value: ir.Expr, body: Callable[[ir.Expr], ir.Expr]) -> ir.Expr:
    """Bind ``value`` to a variable with Let, unless it is one, and return ``body`` of it."""
    if isinstance(value, tirx.Var):
        return body(value)
    var = tirx.Var(name, str(value.ty.dtype))
    return tirx.Let(var, value, body(var))


def _is_nan(value: ir.Expr) -> ir.Expr:
    """Return an is-NaN test; TVM's ``!=`` of floats is ordered, hence false for NaN like ``==``."""
    return tirx.Not(tirx.EQ(value, value))


def _is_nan_by_bits(value: ir.Expr) -> ir.Expr:
    """Return an is-NaN test on the bits: TVM simplifies kernels again and would fold ``x != x``."""
    dtype, _, lanes = str(value.ty.dtype).partition("x")
    row = dtypes.dtype(dtype)
    unsigned = row.bits_dtype
    bits = tirx.reinterpret(f"{unsigned}x{lanes}" if lanes else unsigned, value)
    magnitude = bits & _constant(row.magnitude_mask, unsigned, lanes)
    return magnitude > _constant(row.infinity_bits, unsigned, lanes)


def _is_float(expr: ir.Expr) -> bool:
    return str(expr.ty.dtype).partition("x")[0] in dtypes.FLOATS


def _is_select_in_cuda(expr: ir.Expr) -> bool:
    dtype, _, lanes = str(expr.ty.dtype).partition("x")
    return dtype in dtypes.WIDE_FLOATS and int(lanes or 1) <= _CONDITIONS


def _is_constant(expr: ir.Expr) -> bool:
    while isinstance(expr, tirx.Broadcast | tirx.Cast):
        expr = expr.value
    return isinstance(expr, tirx.FloatImm)


def _has_extremum(expr: ir.Expr) -> bool:
    found: list[Any] = []
    kinds = [(kind, found.append) for kind in _LLVM]
    tvm_ffi.structural_walk(expr, kinds, order="post")
    return bool(found)
