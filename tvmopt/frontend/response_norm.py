"""ONNX's LRN, whose overflow is NaN in all later channels, as in ONNX Runtime.

``y = x / (bias + alpha / size * s) ** beta``, where ``s`` is the sum of the squares of ``size``
channels around that of ``x``.

ONNX Runtime adds the squares that enter a window to one running sum and subtracts those that leave
it. A square that is infinite or NaN therefore turns the sum into NaN once it has left the window,
and an overflow in a network is not hidden by ``x / inf = 0``. Here each window is summed on its
own; NaN is put where the window lies behind such a square.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax


def local_response_norm(
    builder: relax.BlockBuilder, data: relax.Expr, attributes: Mapping[str, Any]
) -> relax.Expr:
    """The LRN of ``data``.

    Args:
        builder: Where to add the operators.
        data: (N, C, ...), of static shape.
        attributes: Of the ONNX node.
    """
    data = builder.normalize(data)
    shape = [int(extent) for extent in data.ty.shape]
    size, dtype = int(attributes["size"]), str(data.ty.dtype)
    squares = relax.op.multiply(data, data)
    mean = _mean_of_windows(squares, shape, size)
    alpha = relax.const(float(attributes.get("alpha", 1e-4)), dtype)
    bias = relax.const(float(attributes.get("bias", 1.0)), dtype)
    scale = relax.op.add(relax.op.multiply(mean, alpha), bias)
    beta = relax.const(float(attributes.get("beta", 0.75)), dtype)
    divisor = relax.op.power(scale, beta)
    behind = _behind_overflow(squares, shape, size)
    nan = relax.const(np.nan, dtype)
    return builder.normalize(relax.op.where(behind, nan, relax.op.divide(data, divisor)))


def _mean_of_windows(squares: relax.Expr, shape: list[int], size: int) -> relax.Expr:
    """Sum of each window by ``size``, whatever part of it lies outside; same shape."""
    batch, channels, *area = shape
    mean = relax.op.nn.avg_pool2d(
        relax.op.reshape(squares, (batch, 1, channels, math.prod(area))),
        pool_size=[size, 1],
        padding=[(size - 1) // 2, 0, size // 2, 0],
        count_include_pad=True,
    )
    return relax.op.reshape(mean, shape)


def _behind_overflow(squares: relax.Expr, shape: list[int], size: int) -> relax.Expr:
    """Where a channel before the first of the window has a square that is not finite."""
    channels = shape[1]
    number = np.arange(channels, dtype="int32").reshape([channels] + [1] * (len(shape) - 2))
    infinite = relax.op.where(
        relax.op.isfinite(squares), relax.const(channels, "int32"), relax.const(number)
    )
    first = relax.op.min(infinite, axis=[1], keepdims=True)
    return relax.op.less(first, relax.const(number - (size - 1) // 2))
