"""Converters of normalizations and of Dropout."""

from __future__ import annotations

from tvm import relax

from tvmopt.frontend.converters.node import (
    Attributes,
    Inputs,
    axis_of,
    constant,
    dtype_of,
    optional,
    outputs,
    static_shape,
)


def layer_normalization(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr | None:
    """Return the normalized input, the mean and the inverse deviation.

    Where only the first output is used, TVM's converter serves.
    """
    if outputs(attributes) == 1:
        return None
    x, scale, bias = inputs[0], inputs[1], optional(inputs, 2)
    rank = len(static_shape(x))
    axes = list(range(axis_of(attributes, rank), rank))
    epsilon = relax.const(float(attributes.get("epsilon", 1e-5)), "float32")
    wide = relax.op.astype(x, "float32")
    mean = builder.emit(relax.op.mean(wide, axes, keepdims=True))
    centred = builder.emit(relax.op.subtract(wide, mean))
    variance = relax.op.mean(relax.op.multiply(centred, centred), axes, keepdims=True)
    inverse = builder.emit(relax.op.rsqrt(relax.op.add(variance, epsilon)))
    y = relax.op.astype(relax.op.multiply(centred, inverse), dtype_of(x))
    y = relax.op.multiply(y, scale)
    y = builder.emit(y if bias is None else relax.op.add(y, bias))
    return relax.Tuple([y, mean, inverse])


def batch_normalization(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr | None:
    """Return the output in training mode, with the new running mean and variance.

    In inference mode, TVM's converter serves.
    """
    if not int(attributes.get("training_mode", 0)):
        return None
    x, scale, bias, mean, variance = inputs
    rank = len(static_shape(x))
    axes = [0, *range(2, rank)]
    shape = [1, -1] + [1] * (rank - 2)
    epsilon = relax.const(float(attributes.get("epsilon", 1e-5)), dtype_of(x))
    momentum = float(attributes.get("momentum", 0.9))
    own_mean = builder.emit(relax.op.mean(x, axes))
    centred = builder.emit(relax.op.subtract(x, relax.op.reshape(own_mean, shape)))
    own_variance = builder.emit(relax.op.mean(relax.op.multiply(centred, centred), axes))
    inverse = relax.op.rsqrt(relax.op.add(own_variance, epsilon))
    factor = builder.emit(relax.op.multiply(inverse, scale))
    y = relax.op.multiply(centred, relax.op.reshape(factor, shape))
    y = builder.emit(relax.op.add(y, relax.op.reshape(bias, shape)))

    def moved(old: relax.Expr, new: relax.Expr) -> relax.Expr:
        dtype = dtype_of(old)
        kept = relax.op.multiply(old, relax.const(momentum, dtype))
        added = relax.op.multiply(relax.op.astype(new, dtype), relax.const(1 - momentum, dtype))
        return builder.emit(relax.op.add(kept, added))

    return relax.Tuple([y, moved(mean, own_mean), moved(variance, own_variance)])


def lp_normalization(
    builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes
) -> relax.Expr:
    """Divide by the norm of order 1 or 2 along an axis; 0 where the norm is 0."""
    x, order = inputs[0], int(attributes.get("p", 2))
    axis = axis_of(attributes, len(static_shape(x)))
    if order == 1:
        norm = relax.op.sum(relax.op.abs(x), [axis], keepdims=True)
    else:
        norm = relax.op.sqrt(relax.op.sum(relax.op.multiply(x, x), [axis], keepdims=True))
    norm = builder.emit(norm)
    zero, one = relax.const(0, dtype_of(x)), relax.const(1, dtype_of(x))
    is_zero = builder.emit(relax.op.equal(norm, zero))
    divided = relax.op.divide(x, relax.op.where(is_zero, one, norm))
    return builder.normalize(relax.op.where(is_zero, relax.op.multiply(x, zero), divided))


def dropout(builder: relax.BlockBuilder, inputs: Inputs, attributes: Attributes) -> relax.Expr:
    """Return the input, and a mask that is true everywhere.

    Raises:
        ValueError: When values are dropped, or may be, as in training.
    """
    x, ratio, training = [*inputs, *[None] * 3][:3]
    if training is not None and constant(training, "training_mode").any():
        rate = 0.5 if ratio is None else float(constant(ratio, "ratio").reshape(()))
        if rate:
            raise ValueError(f"random values must not be dropped, but training drops {rate:g}")
    if outputs(attributes) == 1:
        return x
    mask = relax.op.ones(relax.ShapeExpr(static_shape(x)), "bool")
    return relax.Tuple([x, builder.emit(mask)])
