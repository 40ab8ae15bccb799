"""Converters of element-wise operators."""

from __future__ import annotations

import math

import numpy as np
from tvm import relax, te, tirx

from tvmopt.frontend.converters.node import Attributes, Inputs, dtype_of, static_shape

_TO = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
       10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "bfloat16"}  # fmt: skip


def thresholded_relu(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """``x`` where it exceeds ``alpha``, else 0; TVM's multiplication gives NaN for -inf."""
    x, alpha = inputs[0], float(attributes.get("alpha", 1.0))
    bound, zero = relax.const(alpha, dtype_of(x)), relax.const(0, dtype_of(x))
    return builder.normalize(relax.op.where(relax.op.greater(x, bound), x, zero))


def is_inf(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr | None:
    """Where ``x`` is infinite, of the signs that are asked for."""
    negative = bool(attributes.get("detect_negative", 1))
    positive = bool(attributes.get("detect_positive", 1))
    if negative and positive:
        return None
    x = inputs[0]
    if not negative and not positive:
        return builder.normalize(relax.op.zeros(relax.ShapeExpr(static_shape(x)), "bool"))
    bound = relax.const(np.inf if positive else -np.inf, dtype_of(x))
    return builder.normalize(relax.op.equal(x, bound))


def power(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr | None:
    """``x ** y`` where one is an integer: computed in float64 as in ONNX Runtime."""
    x, y = inputs
    if "int" not in dtype_of(x) and dtype_of(x) == dtype_of(y):
        return None
    wide = (
        "float64" if "int" in dtype_of(x) or "float64" in (dtype_of(x), dtype_of(y)) else "float32"
    )
    result = relax.op.power(relax.op.astype(x, wide), relax.op.astype(y, wide))
    return builder.normalize(relax.op.astype(result, dtype_of(x)))


def bit_cast(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """The same bits, read as another dtype of the same size.

    Raises:
        ValueError: When the sizes differ, or the dtype is not supported.
    """
    x, dtype = inputs[0], _TO.get(int(attributes["to"]), "")
    if not dtype:
        raise ValueError(f"dtype {attributes['to']} is not supported")

    def reinterpreted(data: te.Tensor) -> te.Tensor:
        return te.compute(
            data.shape, lambda *at: tirx.reinterpret(dtype, data[at]), name="bit_cast"
        )

    return builder.emit_te(reinterpreted, x)


# Coefficients of x^3, x^5, x^7 and x^9 in the Taylor series of sinh, over that of x.
_SINH = (1 / 6, 1 / 120, 1 / 5040, 1 / 362880)


def sinh(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return the hyperbolic sine, for which LLVM has no instruction.

    Near 0, where the difference of exponentials loses digits, it is a polynomial.
    """
    x, dtype = inputs[0], dtype_of(inputs[0])
    low, high = _half_exponentials(builder, x)
    square = builder.emit(relax.op.multiply(x, x))
    series = relax.const(0.0, dtype)
    for coefficient in (*reversed(_SINH), 1.0):
        term = relax.op.multiply(series, square)
        series = builder.emit(relax.op.add(term, relax.const(coefficient, dtype)))
    small = relax.op.less(relax.op.abs(x), relax.const(1.0, dtype))
    near = builder.emit(relax.op.multiply(x, series))
    return builder.normalize(relax.op.where(small, near, relax.op.subtract(high, low)))


def cosh(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return the hyperbolic cosine, for which LLVM has no instruction."""
    low, high = _half_exponentials(builder, inputs[0])
    return builder.normalize(relax.op.add(high, low))


def _half_exponentials(builder: relax.BlockBuilder, x: relax.Expr) -> tuple[relax.Expr, relax.Expr]:
    """Return exp(-x) / 2 and exp(x) / 2, finite where their sum is."""
    half = relax.const(math.log(2.0), dtype_of(x))
    low = relax.op.exp(relax.op.subtract(relax.op.negative(x), half))
    return builder.emit(low), builder.emit(relax.op.exp(relax.op.subtract(x, half)))
