"""Converters of element-wise operators."""

from __future__ import annotations

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
