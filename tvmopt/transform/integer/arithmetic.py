"""Rules for add, scale and clip: they update quantization parameters and emit no operators.

before -> after: ``add(sx * (x - z), bias)`` -> ``sx * (x - z + bias / sx)`` when the bias is an
int32 constant of scale ``sx``, as ONNX Runtime quantizes it. Other biases become a float32 offset.
``add`` of two quantized tensors becomes one value with two terms, so that its quantize is one
kernel. A relu or clip becomes bounds, which merge into the clip of the requantize.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from tvm import relax

from tvmopt.transform.integer.context import Context, Rule, RuleResult, output_shape
from tvmopt.transform.integer.values import (
    ZERO,
    Constant,
    Linear,
    Shape,
    Term,
    Value,
    with_rank,
)


def add(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Add a quantized value and another one, or a constant."""
    return _sum(ctx, call, np.float32(1))


def subtract(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Subtract quantized values, or a constant on either side."""
    return _sum(ctx, call, np.float32(-1))


def multiply(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Multiply by a constant; the product of two activations stays in floating point."""
    for arg, other in (call.args, call.args[::-1]):
        value, factor = ctx.value(arg), ctx.constant(other)
        if isinstance(value, Linear) and factor is not None:
            return _scaled(value, factor, output_shape(call))
    return None


def divide(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Divide by a constant."""
    value, divisor = ctx.value(call.args[0]), ctx.constant(call.args[1])
    if not isinstance(value, Linear) or divisor is None or not divisor.all():
        return None
    return _scaled(value, 1 / divisor.astype(np.float64), output_shape(call))


def negative(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Negate a value."""
    value = ctx.value(call.args[0])
    return _scaled(value, np.float32(-1), value.shape) if isinstance(value, Linear) else None


def relu(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Set a lower bound of 0."""
    return bounded(ctx.value(call.args[0]), 0.0, math.inf)


def relu6(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Set bounds of 0 and 6."""
    return bounded(ctx.value(call.args[0]), 0.0, 6.0)


def clip(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Set the bounds of a Clip."""
    low, high = (_literal(arg) for arg in call.args[1:3])
    if low is None or high is None:
        return None
    return bounded(ctx.value(call.args[0]), low, high)


def bound_rule(*, lower: bool) -> Rule:
    """Return the rule for ``maximum`` (a lower bound) or ``minimum`` with a scalar constant."""

    def bound(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
        for arg, other in (call.args, call.args[::-1]):
            value, limit = ctx.value(arg), ctx.constant(other)
            if not isinstance(value, Linear) or limit is None or limit.size != 1:
                continue
            if output_shape(call) != value.shape:
                return None
            number = float(limit.reshape(()))
            return bounded(value, *((number, math.inf) if lower else (-math.inf, number)))
        return None

    return bound


def bounded(value: Value, low: float, high: float) -> Linear | None:
    """Return ``value`` clipped to ``[low, high]``; None when it is not linear."""
    if not isinstance(value, Linear) or low > high or math.isnan(low) or math.isnan(high):
        return None
    # Clip to [low, high] after [value.low, value.high].
    bounds = [min(max(bound, low), high) for bound in (value.low, value.high)]
    return dataclasses.replace(value, low=bounds[0], high=bounds[1])


def _literal(expr: relax.Expr) -> float | None:
    """Return the number of a literal argument."""
    value = getattr(expr, "value", None)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, int | float) else None


def _sum(ctx: Context, call: relax.Call, sign: np.float32) -> RuleResult:
    left, right = (ctx.value(arg) for arg in call.args)
    shape = output_shape(call)
    for value in (left, right):
        if isinstance(value, Linear) and value.clamped:
            return None
    if shape is None:
        return None
    if isinstance(left, Linear) and isinstance(right, Linear):
        if shape not in (left.shape, right.shape):
            return None
        other = _scaled(right, sign, right.shape)
        if other is None or left.offset.ndim or other.offset.ndim:
            return None
        terms = (*left.terms, *other.terms)
        rank = len(shape)
        if any(len(v.shape) != rank for v in (left, right)):
            return None  # the arrays of a term have the rank of its own tensor
        return Linear(terms, shape, (left.offset + other.offset).astype(np.float32))
    if isinstance(left, Linear):
        return _shifted(ctx, left, right, call.args[1], sign, shape)
    if isinstance(right, Linear):
        flipped = _scaled(right, sign, right.shape)
        if flipped is None:
            return None
        return _shifted(ctx, flipped, left, call.args[0], np.float32(1), shape)
    return None


def _shifted(
    ctx: Context,
    value: Linear,
    constant: Value,
    arg: relax.Expr,
    sign: np.float32,
    shape: Shape,
) -> Linear | None:
    real = ctx.constant(arg)
    if real is None or shape != value.shape or str(real.dtype) != "float32":
        return None
    bias = _integer_bias(value, constant, sign)
    if bias is not None:
        return bias
    if isinstance(constant, Constant) and not value.accumulates:
        # A separate term with ONNX Runtime's arithmetic, because sums often lie on a rounding
        # boundary.
        data, scale, zero = (
            with_rank(a, len(shape)) for a in (constant.data, constant.scale, constant.zero)
        )
        term = Term(relax.const(data), np.asarray(sign * scale, np.float32), -zero)
        return dataclasses.replace(value, terms=(*value.terms, term))
    offset = np.asarray(value.offset + sign * with_rank(real, len(shape)), np.float32)
    return dataclasses.replace(value, offset=offset)


def _integer_bias(value: Linear, constant: Value, sign: np.float32) -> Linear | None:
    """Add the bias to the accumulator; return None unless it has the accumulator's scale."""
    if not isinstance(constant, Constant) or len(value.terms) != 1 or value.offset.any():
        return None
    term = value.terms[0]
    if term.dtype != "int32" or constant.data.dtype != np.int32:
        return None
    rank = len(value.shape)
    scale = with_rank(constant.scale, rank)
    try:
        same = np.allclose(scale, sign * term.scale, rtol=1e-5, atol=0)
    except ValueError:  # a scale along another axis
        return None
    if not same:
        return None
    bias = with_rank((constant.data - constant.zero).astype(np.int32), rank)
    shifted = dataclasses.replace(term, shift=np.asarray(term.shift + bias, np.int32))
    return dataclasses.replace(value, terms=(shifted,))


def _scaled(value: Linear, factor: np.ndarray | np.float32, shape: Shape | None) -> Linear | None:
    factor = np.asarray(factor)
    if shape != value.shape or factor.dtype.kind != "f" or not np.isfinite(factor).all():
        return None
    if factor.size == 1 and float(factor.reshape(())) == 1:
        return value
    if sum(dim != 1 for dim in factor.shape) > 1:
        return None  # an elementwise factor: floating point is as fast
    rank = len(value.shape)
    factor = with_rank(factor, rank)
    if value.clamped and not ((factor > 0).all() and (not factor.ndim or _is_rectified(value))):
        return None
    terms = []
    for term in value.terms:
        scale = (term.scale * factor).astype(np.float32)
        if sum(dim != 1 for dim in scale.shape) > 1:
            return None
        terms.append(Term(term.tensor, np.asarray(scale), term.shift))
    if any(term.tensor.ty.ndim not in (0, rank) for term in terms):
        return None
    offset = ZERO if not value.offset.any() else np.asarray(value.offset * factor, np.float32)
    low, high = value.low, value.high
    if value.clamped and not factor.ndim:
        low, high = low * float(factor), high * float(factor)
    return Linear(tuple(terms), value.shape, offset, low, high)


def _is_rectified(value: Linear) -> bool:
    """Return whether the bounds are a relu's, which no positive factor changes."""
    return value.low in (0, -math.inf) and value.high == math.inf
