"""Random pooling and reductions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from tests.kernels.cpu.drawn import CHANNELS, EPILOGUES, SIZES, Draw, Drawn, Operand, with_epilogue

op, nn = relax.op, relax.op.nn


@st.composite
def poolings(draw: Draw) -> Drawn:
    """Draw max and average pooling over windows, or over the whole image."""
    layout = draw(st.sampled_from(["NHWC", "NHWC", "NCHW"]))
    kind = draw(st.sampled_from(["max", "max", "avg", "global"]))
    batch, channels = draw(st.sampled_from([1, 2])), draw(CHANNELS)
    size = [draw(SIZES) for _ in "hw"]
    spatial = [1, 2] if layout == "NHWC" else [2, 3]

    def shape(h: int, w: int) -> tuple[int, ...]:
        return (batch, h, w, channels) if layout == "NHWC" else (batch, channels, h, w)

    bias = (1, 1, 1, channels) if layout == "NHWC" else (1, channels, 1, 1)
    name = draw(st.sampled_from(EPILOGUES))
    if kind == "global":
        keep = draw(st.booleans())
        return with_epilogue(
            name if keep else "none",
            f"mean over {layout} keepdims {keep}",
            (Operand(shape(*size)),),
            lambda x: op.mean(x, spatial, keepdims=keep),
            lambda x: x.mean(tuple(spatial), keepdims=keep),
            shape(1, 1),
            bias,
        )
    kernel = [draw(st.sampled_from([1, 2, 3, 5])) for _ in "hw"]
    strides = [draw(st.integers(1, 3)) for _ in "hw"]
    padding = [draw(st.integers(0, k // 2)) for k in kernel * 2]
    size = [max(s, k) for s, k in zip(size, kernel, strict=True)]
    include = draw(st.booleans())
    high, wide = (
        (size[i] + padding[i] + padding[i + 2] - kernel[i]) // strides[i] + 1 for i in (0, 1)
    )

    def build(x: Any) -> Any:
        if kind == "max":
            return nn.max_pool2d(x, kernel, strides, padding, layout=layout)
        return nn.avg_pool2d(x, kernel, strides, padding, count_include_pad=include, layout=layout)

    def windows(x: np.ndarray, fill: float) -> np.ndarray:
        x = x if layout == "NHWC" else x.transpose(0, 2, 3, 1)
        top, left, bottom, right = padding
        x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)), constant_values=fill)
        return sliding_window_view(x, kernel, axis=(1, 2))[:, :: strides[0], :: strides[1]]

    def numpy(x: np.ndarray) -> np.ndarray:
        if kind == "max":
            y = windows(x, -np.inf).max((-1, -2))
        else:
            total = windows(x, 0.0).sum((-1, -2))
            count = windows(np.ones_like(x), 0.0).sum((-1, -2))
            y = total / (math.prod(kernel) if include else np.maximum(count, 1))
        return y if layout == "NHWC" else y.transpose(0, 3, 1, 2)

    return with_epilogue(
        name,
        f"{kind}_pool2d {layout} kernel {kernel} stride {strides} padding {padding} "
        f"include {include}",
        (Operand(shape(*size)),),
        build,
        numpy,
        shape(high, wide),
        bias,
    )


def _softmax_numpy(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@st.composite
def reductions(draw: Draw) -> Drawn:
    """Draw sum, max, mean, softmax, normalization and argmax over any axis."""
    extents = st.sampled_from([1, 2, 3, 5, 7, 8, 16, 17, 33, 48, 64, 130])
    shape = tuple(draw(st.lists(extents, min_size=1, max_size=4)))
    while math.prod(shape) > 20_000:
        shape = shape[1:]
    rank = len(shape)
    axis = draw(st.integers(0, rank - 1))
    keep = draw(st.booleans())
    kind = draw(
        st.sampled_from(
            ["sum", "max", "min", "mean", "softmax", "softmax", "layer_norm", "variance", "argmax"]
        )
    )
    axes = [axis]
    if kind in ("sum", "max", "mean", "variance") and rank > 1 and draw(st.booleans()):
        axes = sorted({axis, draw(st.integers(0, rank - 1))})
    at = tuple(axes)
    kept = tuple(1 if i in axes else e for i, e in enumerate(shape))
    out = kept if keep else tuple(e for i, e in enumerate(shape) if i not in axes)
    text = f"{kind} over {axes} keepdims {keep}"
    x = Operand(shape)
    if kind == "softmax":
        return Drawn(text, (x,), lambda v: nn.softmax(v, axis), lambda v: _softmax_numpy(v, axis))
    if kind == "argmax":
        return Drawn(
            text,
            (x,),
            lambda v: op.argmax(v, axis, keepdims=keep),
            lambda v: v.argmax(axis, keepdims=keep),
            coarse=True,
        )
    if kind == "layer_norm":
        last = rank - 1

        def normal(v: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
            mean, variance = v.mean(last, keepdims=True), v.var(last, keepdims=True)
            return (v - mean) / np.sqrt(variance + 1e-5) * scale + shift

        weight = Operand((shape[-1],), constant=True)
        return Drawn(
            text,
            (x, weight, weight),
            lambda v, scale, shift: nn.layer_norm(v, scale, shift, [last]),
            normal,
        )
    functions: dict[str, tuple[Any, Any]] = {
        "sum": (op.sum, np.sum),
        "max": (op.max, np.max),
        "min": (op.min, np.min),
        "mean": (op.mean, np.mean),
        "variance": (op.variance, np.var),
    }
    build, numpy = functions[kind]
    name = draw(st.sampled_from(EPILOGUES)) if out else "none"
    return with_epilogue(
        name,
        text,
        (x,),
        lambda v: build(v, axes, keepdims=keep),
        lambda v: numpy(v, at, keepdims=keep),
        out,
        out,
    )
