"""Legalise bfloat16: store internal buffers as uint16, and lower casts to integer arithmetic.

TVM widens every bfloat16 buffer that a function allocates to float32. Padded inputs and packed
weights then take twice the memory, and tensor intrinsics read wrong values. TVM also fails on casts
inside a ``Let``, which :mod:`.vector_math` emits. This pass turns the buffers into uint16 and the
casts into shifts and rounding.

before -> after::

    P = alloc_buffer((58, 58, 64), "bfloat16")
    P[y, x, c] = if_then_else(..., A[y - 1, x - 1, c], bfloat16(0))
    B[...] = Cast("bfloat16", exp(Cast("float32", P[y, x, c])))

    P = alloc_buffer((58, 58, 64), "uint16")
    P[y, x, c] = if_then_else(..., reinterpret("uint16", A[y - 1, x - 1, c]), uint16(0))
    B[...] = reinterpret("bfloat16", rounded(exp(reinterpret("float32", P[y, x, c] << 16))))
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import tvm_ffi
from tvm import ir, s_tir, tirx

from tvmopt.kernels.cpu.intrinsics.calls import called

_TYPE, _BITS = "bfloat16", "uint16"
_MOVED = (ir.TensorLoad, tirx.Select)
_EXACT = (tirx.Max, tirx.Min)
_ARITHMETIC = (*_EXACT, tirx.Add, tirx.Sub, tirx.Mul, tirx.Div)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
# Math functions, which are computed in float32 like arithmetic.
_FUNCTIONS = {
    "abs", "ceil", "cos", "cosh", "erf", "exp", "exp10", "exp2", "fabs", "floor", "log", "log10",
    "log1p", "log2", "nearbyint", "pow", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
}  # fmt: skip
_REINTERPRET, _ADDRESS, _IF = "reinterpret", "address_of", "if_then_else"


def keep_bfloat16_bits(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return ``func`` with internal bfloat16 buffers as uint16, and casts as integer arithmetic."""
    buffers = _own_buffers(func)
    ours = set(buffers.values())

    def on_load(load: ir.TensorLoad) -> ir.Expr:
        if load.source not in ours:
            return load
        bits = tirx.BufferLoad(load.source, list(load.indices))
        return tirx.reinterpret(_like(_TYPE, bits), bits)

    def on_store(store: tirx.BufferStore) -> tirx.BufferStore:
        value = store.value
        if store.buffer in ours:
            return tirx.BufferStore(store.buffer, _bits(value), list(store.indices))
        chosen = isinstance(value, tirx.FloatImm | tirx.Select) or _is(value, _IF)
        if _is_bfloat16(value) and (chosen or _is_computed(value)):
            bits = _bits(value)
            if chosen:
                bits = _of_every_lane(bits, store.indices)
            narrow = tirx.reinterpret(str(value.ty.dtype), bits)
            return tirx.BufferStore(store.buffer, narrow, list(store.indices))
        return store

    def on_cast(cast: tirx.Cast) -> ir.Expr:
        to, come = str(cast.ty.dtype), str(cast.value.ty.dtype)
        if to.startswith("float32") and come.startswith(_TYPE):
            return _float32(cast.value)
        if to.startswith(_TYPE) and come.startswith("float32"):
            return tirx.reinterpret(to, _rounded(cast.value))
        return cast

    def on_comparison(comparison: ir.Expr) -> ir.Expr:
        a, b = comparison.a, comparison.b
        return type(comparison)(_float32(a), _float32(b)) if _is_bfloat16(a) else comparison

    def on_call(call: ir.Call) -> ir.Expr:
        if not (_is(call, _REINTERPRET) or _is(call, _ADDRESS)):
            return call
        inner = call.args[0]
        if not (_is(inner, _REINTERPRET) and str(inner.ty.dtype).startswith(_TYPE)):
            return call
        bits = inner.args[0]
        if _is(call, _ADDRESS):
            return tirx.address_of(bits)
        return bits if call.ty == bits.ty else tirx.reinterpret(str(call.ty.dtype), bits)

    def on_region(region: ir.TensorRegion) -> ir.TensorRegion:
        if region.source not in ours:
            return region
        return tirx.BufferRegion(region.source, list(region.region))

    body = tvm_ffi.structural_map(
        func.body,
        [
            (tirx.Var, lambda var: buffers.get(var, var)),
            (ir.TensorLoad, on_load),
            (ir.TensorRegion, on_region),
            (tirx.BufferStore, on_store),
            (tirx.Cast, on_cast),
            *((comparison, on_comparison) for comparison in _COMPARISONS),
            (ir.Call, on_call),
        ],
        order="post",
    )
    return func.with_body(body)


def _own_buffers(func: tirx.PrimFunc) -> dict[tirx.Var, tirx.Var]:
    """Map the internal bfloat16 buffers, and their views, to uint16 buffers."""
    found: dict[tirx.Var, tirx.Var] = {}

    def on_block(block: s_tir.SBlock) -> None:
        for buffer in block.alloc_buffers:
            if str(buffer.dtype) == _TYPE:
                found[buffer] = buffer.with_dtype(_BITS)
        for view in block.match_buffers:
            if view.source.source in found:
                found[view.buffer] = view.buffer.with_dtype(_BITS)

    tvm_ffi.structural_walk(func.body, (s_tir.SBlock, on_block), order="pre")
    return found


def _bits(value: ir.Expr) -> ir.Expr:
    """Return the bits of a bfloat16 value; a value that is only moved needs no rounding."""
    if _is(value, _REINTERPRET) and str(value.args[0].ty.dtype).startswith(_BITS):
        return value.args[0]
    if _is(value, _IF):
        condition, one, other = value.args
        return tirx.if_then_else(condition, _bits(one), _bits(other))
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, _bits(value.true_value), _bits(value.false_value))
    if isinstance(value, tirx.FloatImm):
        number = np.array(float(value.value), ml_dtypes.bfloat16).view(np.uint16)
        return tirx.const(int(number), _BITS)
    if isinstance(value, ir.TensorLoad):
        return tirx.reinterpret(_like(_BITS, value), value)
    if isinstance(value, _EXACT) and _is_exact(value):  # nothing to round
        word = _like("uint32", value)
        upper = tirx.reinterpret(word, _float32(value)) >> tirx.const(16, word)
        return upper.astype(_like(_BITS, value))
    return _rounded(_float32(value))


def _of_every_lane(bits: ir.Expr, indices: Sequence[ir.Expr]) -> ir.Expr:
    """Return ``bits`` as an expression that depends on the store's ``indices``.

    TVM fails to narrow the broadcast of a bfloat16 constant in a vector store, so the constant is
    hidden behind ``index & 0``; LLVM folds it. Any index may be the vectorised one, where the last
    dimension has one element.
    """
    index = functools.reduce(operator.add, indices)
    nothing = index.astype(_like(_BITS, index)) & tirx.const(0, _like(_BITS, index))
    return bits | nothing


def _is_exact(value: ir.Expr) -> bool:
    """Return whether :func:`_float32` of ``value`` is exactly representable in bfloat16."""
    if isinstance(value, _EXACT):
        return _is_exact(value.a) and _is_exact(value.b)
    moved = _is(value, _REINTERPRET) or _is(value, _IF) or isinstance(value, _MOVED)
    return moved or isinstance(value, tirx.FloatImm)


def _float32(value: ir.Expr) -> ir.Expr:
    """Return a bfloat16 value as float32: its bits are the upper half of the float32."""
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(value.value), "float32")
    if isinstance(value, _ARITHMETIC):
        return type(value)(_float32(value.a), _float32(value.b))
    if _is_computed(value):
        wide = [_float32(arg) for arg in value.args]
        return ir.Call(value.op, wide, ret_ty=ir.PrimType(_like("float32", value)))
    if not (_is(value, _REINTERPRET) or _is(value, _IF)) and not isinstance(value, _MOVED):
        return tirx.Cast(_like("float32", value), value)
    word = _like("uint32", value)
    return tirx.reinterpret(
        _like("float32", value), _bits(value).astype(word) << tirx.const(16, word)
    )


def _rounded(value: ir.Expr) -> ir.Expr:
    """Return the bfloat16 bits of a float32, rounded to nearest even; NaN stays NaN."""
    word = _like("uint32", value)

    def of_number(number: tirx.Var) -> ir.Expr:
        bits = tirx.reinterpret(word, number)
        upper = bits >> tirx.const(16, word)
        half = tirx.const(0x7FFF, word) + (upper & tirx.const(1, word))
        quiet = upper | tirx.const(0x40, word)
        rounded = (bits + half) >> tirx.const(16, word)
        # TVM does not vectorise isnan, and folds number != number to false.
        is_nan = (bits & tirx.const(0x7FFFFFFF, word)) > tirx.const(0x7F800000, word)
        return tirx.Select(is_nan, quiet, rounded).astype(_like(_BITS, value))

    number = tirx.Var("number", str(value.ty.dtype))
    return tirx.Let(number, value, of_number(number))


def _is_computed(expr: ir.Expr) -> bool:
    """Return whether ``expr`` is arithmetic or a math function."""
    return isinstance(expr, _ARITHMETIC) or called(expr) in _FUNCTIONS


def _is_bfloat16(expr: ir.Expr) -> bool:
    """Return whether the dtype of ``expr`` is bfloat16, scalar or vector."""
    return str(expr.ty.dtype).startswith(_TYPE)


def _is(expr: ir.Expr, name: str) -> bool:
    """Return whether ``expr`` calls the operator ``name``, in any dialect."""
    return called(expr) == name


def _like(dtype: str, expr: ir.Expr) -> str:
    """Return ``dtype`` with the lanes of ``expr``."""
    _, lanes, count = str(expr.ty.dtype).partition("x")
    return f"{dtype}{lanes}{count}"
