"""Converters of operators of ai.onnx.ml that prepare features."""

from __future__ import annotations

import numpy as np
from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    constant,
    dtype_of,
    is_constant,
    static_shape,
    text,
    typed_constant,
)


def scaler(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return ``(x - offset) * scale``, float32; both have one value, or one a column."""
    x = inputs[0]
    dtype = "float64" if dtype_of(x) == "float64" else "float32"
    x = _astype(builder, x, dtype)
    offset, scale = (
        typed_constant(_per_column(attributes[name], x, name), dtype)
        for name in ("offset", "scale")
    )
    y = builder.emit(relax.op.multiply(relax.op.subtract(x, offset), scale))
    return _astype(builder, y, "float32")


def normalizer(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Divide each row by its largest value (MAX), its L1 or its L2 norm, unless that is 0.

    Returns:
        float32. As in ONNX Runtime, MAX skips NaN and takes negative values as they are, and L2
        gives the square root of each value's share of the sum of squares, with its sign.
    """
    given = inputs[0]
    x, rank = _astype(builder, given, "float32"), len(static_shape(given))
    if rank > 2:
        raise ValueError(f"inputs must have one or two axes, but have {rank}")
    norm, zero = text(attributes, "norm", "MAX"), relax.const(0.0)
    if norm == "MAX":
        lowest = relax.const(np.finfo("float32").min, "float32")
        clean = builder.emit(relax.op.where(relax.op.isnan(x), lowest, x))
        size = relax.op.maximum(relax.op.max(clean, [rank - 1], keepdims=True), lowest)
        divided, size = x, builder.emit(size)
    elif norm == "L1":
        divided = x
        size = builder.emit(relax.op.sum(relax.op.abs(x), [rank - 1], keepdims=True))
    elif norm == "L2":
        divided = _astype(builder, builder.emit(relax.op.multiply(given, given)), "float32")
        size = builder.emit(relax.op.sum(divided, [rank - 1], keepdims=True))
    else:
        raise ValueError(f"norm {norm} is not supported")
    is_zero = builder.emit(relax.op.equal(size, zero))
    safe = builder.emit(relax.op.where(is_zero, relax.const(1.0), size))
    share = builder.emit(relax.op.divide(divided, safe))
    if norm == "L2":
        root = builder.emit(relax.op.sqrt(share))
        share = relax.op.where(relax.op.less(x, zero), relax.op.negative(root), root)
    return builder.normalize(relax.op.where(is_zero, x, builder.emit(share)))


def imputer(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Replace one value, which may be NaN, by another one of its column."""
    x = inputs[0]
    kind = "int64" if dtype_of(x) == "int64" else "float"
    given = attributes.get(f"imputed_value_{kind}s")
    if not given:
        raise ValueError(f"imputed_value_{kind}s must be given for {dtype_of(x)}")
    filled = typed_constant(_per_column(given, x, "imputed values", cut=True), dtype_of(x))
    missing = attributes.get(f"replaced_value_{kind}", 0)
    if kind == "float" and np.isnan(missing):
        is_missing = relax.op.isnan(x)
    else:
        is_missing = relax.op.equal(x, relax.const(missing, dtype_of(x)))
    return builder.normalize(relax.op.where(is_missing, filled, x))


def binarizer(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return 1 where a value exceeds the threshold, else 0.

    NaN stays NaN, while ONNX Runtime refuses the call.
    """
    x = inputs[0]
    dtype = dtype_of(x)
    threshold = relax.const(float(attributes.get("threshold", 0.0)), dtype)
    one, zero = relax.const(1, dtype), relax.const(0, dtype)
    y = builder.emit(relax.op.where(relax.op.greater(x, threshold), one, zero))
    return builder.normalize(relax.op.where(relax.op.isnan(x), x, y))


def array_feature_extractor(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return columns of the last axis by their indices; an input of one axis is one row.

    Raises:
        ValueError: When a constant index is no column.
    """
    x, indices = inputs
    shape = static_shape(x)
    if is_constant(indices):
        numbers = constant(indices, "indices").reshape(-1)
        if not numbers.size or numbers.min() < 0 or numbers.max() >= shape[-1]:
            raise ValueError(f"indices must be columns below {shape[-1]}")
        flat = typed_constant(numbers)
    else:
        flat = builder.emit(relax.op.reshape(indices, [-1]))
    if len(shape) == 1:
        x = builder.emit(relax.op.reshape(x, [1, shape[0]]))
    return builder.normalize(relax.op.take(x, flat, max(1, len(shape) - 1), "clip"))


def feature_vectorizer(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Return the inputs side by side, float32; each is cut or filled with 0 to its columns."""
    parts: list[relax.Expr] = []
    widths = [int(width) for width in attributes.get("inputdimensions") or ()]
    if len(widths) != len(inputs):
        raise ValueError(f"inputdimensions must have {len(inputs)} values, but has {len(widths)}")
    for x, width in zip(inputs, widths, strict=True):
        shape = static_shape(x)
        rows, columns = (1, shape[0]) if len(shape) == 1 else (shape[0], int(np.prod(shape[1:])))
        part = _astype(builder, builder.emit(relax.op.reshape(x, [rows, columns])), "float32")
        if width < columns:
            part = builder.emit(relax.op.strided_slice(part, [1], [0], [width]))
        parts.append(part)
        if width > columns:
            parts.append(relax.const(np.zeros((rows, width - columns), "float32")))
    return builder.normalize(relax.op.concat(parts, 1))


def _astype(builder: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr:
    return x if dtype_of(x) == dtype else builder.emit(relax.op.astype(x, dtype))


def _per_column(
    values: tuple[float, ...], x: relax.Expr, what: str, *, cut: bool = False
) -> np.ndarray:
    """Return one value, or one for each of the columns of ``x``.

    Args:
        values: The values.
        x: A tensor of one or two axes.
        what: Their name, for the message.
        cut: Whether the first of any other number of values serves for all columns.
    """
    shape = static_shape(x)
    if len(shape) not in (1, 2):
        raise ValueError(f"inputs must have one or two axes, but have {len(shape)}")
    if len(values) not in (1, shape[-1]) and not cut:
        raise ValueError(f"{what} must have 1 or {shape[-1]} values, but has {len(values)}")
    return np.array(values if len(values) == shape[-1] else values[:1])
