"""ONNX LRN with ONNX Runtime's overflow: NaN in all later channels.

``y = x / (bias + alpha / size * s) ** beta``, where ``s`` is the sum of squares over ``size``
channels around that of ``x``.

ONNX Runtime keeps one running sum: it adds squares that enter the window and subtracts squares that
leave. An infinite or NaN square thus makes the sum NaN after it has left the window, and
``x / inf = 0`` does not hide an overflow in the network. Here each window is summed separately; NaN
is inserted where such a square precedes the window.
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
    """Return the LRN of ``data``.

    Args:
        builder: Block builder to emit into.
        data: (N, C, ...), of static shape.
        attributes: Attributes of the ONNX node.
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
    """Return the sum of each window divided by ``size``, including zero padding; same shape."""
    batch, channels, *area = shape
    mean = relax.op.nn.avg_pool2d(
        relax.op.reshape(squares, (batch, 1, channels, math.prod(area))),
        pool_size=[size, 1],
        padding=[(size - 1) // 2, 0, size // 2, 0],
        count_include_pad=True,
    )
    return relax.op.reshape(mean, shape)


def _behind_overflow(squares: relax.Expr, shape: list[int], size: int) -> relax.Expr:
    """Return where a channel before the window has a non-finite square."""
    channels = shape[1]
    number = np.arange(channels, dtype="int32").reshape([channels] + [1] * (len(shape) - 2))
    infinite = relax.op.where(
        relax.op.isfinite(squares), relax.const(channels, "int32"), relax.const(number)
    )
    first = relax.op.min(infinite, axis=[1], keepdims=True)
    return relax.op.less(first, relax.const(number - (size - 1) // 2))
