"""A residual network of four convolutions, and its NumPy reference."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

SHAPE = (1, 8, 8, 32)
_RNG = np.random.default_rng(0)
WEIGHTS = {
    0: _RNG.standard_normal((3, 3, 32, 32)).astype("float32") / 15,
    1: _RNG.standard_normal((1, 1, 32, 64)).astype("float32") / 5,
    2: _RNG.standard_normal((3, 3, 64, 64)).astype("float32") / 20,
    3: _RNG.standard_normal((1, 1, 64, 32)).astype("float32") / 7,
}
BIAS = _RNG.standard_normal((1, 1, 1, 32)).astype("float32")


def residual_net() -> tvm.IRModule:
    """conv 3x3 (0) -> conv 1x1 (1) -> conv 3x3 of stride 2 (2) -> conv 1x1 (3) + pooled (0)."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(SHAPE, "float32"))

    def conv(data: relax.Expr, layer: int, **settings: int) -> relax.Var:
        return builder.emit(
            relax.op.nn.conv2d(
                data, relax.const(WEIGHTS[layer]),
                data_layout="NHWC", kernel_layout="HWIO", **settings,
            )
        )  # fmt: skip

    with builder.function("main", [x]):
        with builder.dataflow():
            first = builder.emit(
                relax.op.nn.relu(relax.op.add(conv(x, 0, padding=1), relax.const(BIAS)))
            )
            y = builder.emit(relax.op.nn.relu(conv(first, 1)))
            y = builder.emit(relax.op.nn.relu(conv(y, 2, padding=1, strides=2)))
            y = conv(y, 3)
            pooled = builder.emit(
                relax.op.nn.max_pool2d(first, (2, 2), strides=(2, 2), layout="NHWC")
            )
            out = builder.emit_output(relax.op.add(y, pooled))
        builder.emit_func_output(out)
    return builder.get()


def inputs() -> np.ndarray:
    """Return a random input of :func:`residual_net`."""
    return np.random.default_rng(1).standard_normal(SHAPE).astype("float32")


def residual_net_numpy(x: np.ndarray) -> np.ndarray:
    """Compute :func:`residual_net` with NumPy."""
    first = np.maximum(_conv(x, 0, 1, 1) + BIAS, 0)
    y = np.maximum(_conv(first, 1, 0, 1), 0)
    y = np.maximum(_conv(y, 2, 1, 2), 0)
    n, h, w, c = first.shape
    pooled = first.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))
    return _conv(y, 3, 0, 1) + pooled


def _conv(x: np.ndarray, layer: int, padding: int, stride: int) -> np.ndarray:
    weight = WEIGHTS[layer].astype("float64")
    padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    size = weight.shape[:2]
    windows = np.lib.stride_tricks.sliding_window_view(padded, size, axis=(1, 2))
    return np.einsum("nyxcij,ijco->nyxo", windows[:, ::stride, ::stride], weight)
