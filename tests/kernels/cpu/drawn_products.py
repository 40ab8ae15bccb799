"""Random convolutions of all kinds, and random matmuls."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.lib.stride_tricks import sliding_window_view
from tvm import relax

from tests.kernels.cpu.drawn import (
    CHANNELS,
    EPILOGUES,
    FLOAT,
    SIZES,
    Draw,
    Drawn,
    Operand,
    Types,
    with_epilogue,
)
from tvmopt.kernels.winograd_matrices import MATRICES
from tvmopt.transform.winograd import call_winograd

op, nn = relax.op, relax.op.nn


def conv2d_numpy(
    x: np.ndarray,
    w: np.ndarray,
    strides: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> np.ndarray:
    """Convolve x (n, h, w, c) with w (kh, kw, c / groups, o) -> (n, oh, ow, o)."""
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (top, bottom), (left, right), (0, 0)))
    kh, kw, inputs, outputs = w.shape
    high = (x.shape[1] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    wide = (x.shape[2] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    each = outputs // groups
    out = np.zeros((x.shape[0], high, wide, outputs))
    for ky in range(kh):
        for kx in range(kw):
            part = x[:, ky * dilation[0] :, kx * dilation[1] :]
            part = part[:, :: strides[0], :: strides[1]][:, :high, :wide]
            for g in range(groups):
                data = part[..., g * inputs : (g + 1) * inputs]
                mine = slice(g * each, (g + 1) * each)
                out[..., mine] += data @ w[ky, kx][:, mine]
    return out


@st.composite
def convolutions(
    draw: Draw,
    layout: str | None = None,
    grouping: str | None = None,
    types: Types = FLOAT,
) -> Drawn:
    """Draw 2-d convolutions in three layouts, with all attributes."""
    layout = layout or draw(st.sampled_from(["NHWC", "NHWC", "NCHW", "NCHW16c"]))
    kernel = [draw(st.sampled_from([1, 2, 3, 3, 5, 7])) for _ in "hw"]
    if draw(st.booleans()):
        kernel[1] = kernel[0]
    strides = [draw(st.integers(1, 3)) for _ in "hw"]
    dilation = [draw(st.sampled_from([1, 1, 2])) for _ in "hw"]
    padding = [draw(st.integers(0, max(k // 2, 1))) for k in kernel * 2]
    size = [
        max(draw(SIZES), (k - 1) * d + 1 - padding[i] - padding[i + 2])
        for i, (k, d) in enumerate(zip(kernel, dilation, strict=True))
    ]
    batch = draw(st.sampled_from([1, 1, 2]))
    grouping = grouping or draw(st.sampled_from(["one", "one", "depthwise", "several"]))
    if layout == "NCHW16c":
        grouping = "depthwise" if grouping == "depthwise" else "one"
        channels, outputs = (16 * draw(st.integers(1, 3)) for _ in "io")
        groups = 1
        if grouping == "depthwise":
            outputs = groups = channels
    elif grouping == "depthwise":
        groups = channels = draw(CHANNELS)
        outputs = channels * draw(st.sampled_from([1, 1, 2]))
    elif grouping == "several":
        groups = draw(st.sampled_from([2, 3, 4]))
        channels, outputs = (groups * draw(st.sampled_from([1, 2, 3, 5, 8, 16])) for _ in "io")
    else:
        groups, channels, outputs = 1, draw(CHANNELS), draw(CHANNELS)
    each = channels // groups
    high, wide = (
        (size[i] + padding[i] + padding[i + 2] - (kernel[i] - 1) * dilation[i] - 1) // strides[i]
        + 1
        for i in (0, 1)
    )

    def numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if layout == "NHWC":
            return conv2d_numpy(x, w, strides, padding, dilation, groups)
        if layout == "NCHW":
            x, w = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0)
            y = conv2d_numpy(x, w, strides, padding, dilation, groups)
            return y.transpose(0, 3, 1, 2)
        n, c, h, v, lanes = x.shape
        x = x.transpose(0, 2, 3, 1, 4).reshape(n, h, v, c * lanes)
        w = w.transpose(2, 3, 1, 4, 0, 5).reshape(*kernel, each, outputs)
        y = conv2d_numpy(x, w, strides, padding, dilation, groups)
        return y.reshape(n, high, wide, -1, lanes).transpose(0, 3, 1, 2, 4)

    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    out: tuple[int, ...]
    bias: tuple[int, ...]
    if layout == "NHWC":
        shapes = (batch, *size, channels), (*kernel, each, outputs)
        kernel_layout, out, bias = "HWIO", (batch, high, wide, outputs), (1, 1, 1, outputs)
    elif layout == "NCHW":
        shapes = (batch, channels, *size), (outputs, each, *kernel)
        kernel_layout, out, bias = "OIHW", (batch, outputs, high, wide), (1, outputs, 1, 1)
    else:
        inner = 1 if groups > 1 else 16
        shapes = (
            (batch, channels // 16, *size, 16),
            (outputs // 16, each // inner, *kernel, inner, 16),
        )
        kernel_layout = f"OIHW{inner}i16o"
        out, bias = (batch, outputs // 16, high, wide, 16), (1, outputs // 16, 1, 1, 16)

    def build(x: Any, w: Any) -> Any:
        layouts = layout, kernel_layout, layout
        return nn.conv2d(x, w, strides, padding, dilation, groups, *layouts, types.sums)

    text = f"conv2d {layout} stride {strides} padding {padding} dilation {dilation} groups {groups}"
    # A convolution of two activations has no constant weight.
    constant = draw(st.sampled_from([True] * 4 + [False]))
    operands = Operand(shapes[0], dtype=types.data), Operand(shapes[1], constant, types.weight)
    name = draw(st.sampled_from(types.epilogues))
    return types.with_epilogue(name, text, operands, build, numpy, out, bias)


@st.composite
def winograd_convolutions(draw: Draw, types: Types = FLOAT) -> Drawn:
    """Draw 3 x 3 Winograd convolutions, with an already transformed weight."""
    m = draw(st.sampled_from([2, 4] if types is FLOAT else [2]))
    matrices, side = MATRICES[m], m + 2
    bt, at = np.array(matrices.bt), np.array(matrices.at)
    padding = [draw(st.integers(0, 2)) for _ in range(4)]
    size = [max(draw(SIZES), 3 - padding[k] - padding[k + 2]) for k in (0, 1)]
    batch = draw(st.sampled_from([1, 1, 2]))
    channels = draw(st.sampled_from([1, 8, 13, 16, 32]))
    outputs = draw(st.sampled_from([16, 32, 32, 48, 64, 128, 24, 40, 5]))
    high, wide = (size[k] + padding[k] + padding[k + 2] - 2 for k in (0, 1))
    tiles = [-(-high // m), -(-wide // m)]

    def build(x: Any, u: Any) -> Any:
        top, left, bottom, right = padding
        return call_winograd(relax.BlockBuilder.current(), x, u, m, (top, left, bottom, right))

    def numpy(x: np.ndarray, u: np.ndarray) -> np.ndarray:
        after = [t * m + 2 - s - p for t, s, p in zip(tiles, size, padding, strict=False)]
        x = np.pad(x, ((0, 0), (padding[0], after[0]), (padding[1], after[1]), (0, 0)))
        patches = sliding_window_view(x, (side, side), axis=(1, 2))[:, ::m, ::m]
        v = np.einsum("ia,jb,nyxcab->ijnyxc", bt, bt, patches)
        y = np.einsum("ia,jb,abnyxo->nyixjo", at, at, np.einsum("ijnyxc,ijco->ijnyxo", v, u))
        return y.reshape(batch, tiles[0] * m, tiles[1] * m, outputs)[:, :high, :wide]

    drawn = types.with_epilogue(
        # The values are large: a clip would leave no scale for the error.
        draw(st.sampled_from([e for e in EPILOGUES if e not in ("clip", "sigmoid")])),
        f"winograd convolution m {m} padding {padding}",
        (
            Operand((batch, *size, channels), dtype=types.data),
            Operand((side, side, channels, outputs), draw(st.booleans()), types.weight),
        ),
        build,
        numpy,
        (batch, high, wide, outputs),
        (1, 1, 1, outputs),
    )
    # Transformed integers are exact in bfloat16: TVM does not round what a function keeps.
    return dataclasses.replace(drawn, coarse=types is not FLOAT)


@st.composite
def matmuls(draw: Draw, types: Types = FLOAT) -> Drawn:
    """Draw matmuls: plain or transposed, batched or not, also of one row."""
    rows = draw(st.sampled_from([1, 1, 2, 5, 7, 16, 29, 48, 97]))
    columns = draw(st.sampled_from([1, 3, 8, 13, 16, 31, 48, 64, 100]))
    depth = draw(st.sampled_from([1, 2, 7, 16, 33, 64, 130]))
    transposed = draw(st.booleans())
    kind = draw(st.sampled_from(["plain", "plain", "batched", "shared"]))
    batch = (draw(st.integers(2, 4)),) if kind != "plain" else ()
    weight = (columns, depth) if transposed else (depth, columns)
    right = (batch if kind == "batched" else ()) + weight
    # Attention multiplies two activations, a dense layer an activation and a weight.
    constant = (
        draw(st.booleans()) if kind == "batched" else draw(st.sampled_from([True, True, False]))
    )

    def swap(b: Any) -> list[int]:
        rank = len(right)
        return [*range(rank - 2), rank - 1, rank - 2]

    def build(a: Any, b: Any) -> Any:
        b = op.permute_dims(b, swap(b)) if transposed else b
        return op.matmul(a, b, out_dtype=types.sums)

    def numpy(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return a @ (b.transpose(swap(b)) if transposed else b)

    return types.with_epilogue(
        draw(st.sampled_from(types.epilogues)),
        f"matmul {kind}{' transposed' if transposed else ''}",
        (Operand((*batch, rows, depth), dtype=types.data), Operand(right, constant, types.weight)),
        build,
        numpy,
        (*batch, rows, columns),
        (columns,),
    )


@st.composite
def transposed_convolutions(draw: Draw) -> Drawn:
    """Draw transposed 2-d convolutions in two layouts."""
    layout = draw(st.sampled_from(["NHWC", "NCHW"]))
    kernel = [draw(st.sampled_from([1, 2, 3, 4]))] * 2
    strides = [draw(st.integers(1, 3))] * 2
    padding = [draw(st.integers(0, (kernel[0] - 1) // 2)) for _ in range(4)]
    extra = [draw(st.integers(0, strides[0] - 1))] * 2
    size = [draw(st.integers(1, 7)) for _ in "hw"]
    size = [s + 2 if kernel[0] > 2 else s for s in size]
    groups = draw(st.sampled_from([1, 1, 1, 2])) if layout == "NCHW" else 1
    channels, each = groups * draw(st.sampled_from([1, 3, 8, 16])), draw(CHANNELS)
    high, wide = (
        (size[i] - 1) * strides[i] - padding[i] - padding[i + 2] + kernel[i] + extra[i]
        for i in (0, 1)
    )
    outputs = each * groups

    def build(x: Any, w: Any) -> Any:
        return nn.conv2d_transpose(
            x,
            w,
            strides,
            padding,
            extra,
            groups=groups,
            data_layout=layout,
            kernel_layout="IOHW" if layout == "NCHW" else "HWIO",
        )

    def numpy(x: np.ndarray, w: np.ndarray) -> np.ndarray:
        if layout == "NCHW":
            x, w = x.transpose(0, 2, 3, 1), w.transpose(2, 3, 0, 1)
        full = np.zeros((1, (size[0] + 2) * 3 + 8, (size[1] + 2) * 3 + 8, outputs))
        ci = channels // groups
        for ky in range(kernel[0]):
            for kx in range(kernel[1]):
                for g in range(groups):
                    part = x[..., g * ci : (g + 1) * ci] @ w[ky, kx, g * ci : (g + 1) * ci]
                    rows = slice(ky, ky + size[0] * strides[0], strides[0])
                    columns = slice(kx, kx + size[1] * strides[1], strides[1])
                    full[:, rows, columns, g * each : (g + 1) * each] += part
        out = full[:, padding[0] : padding[0] + high, padding[1] : padding[1] + wide]
        return out if layout == "NHWC" else out.transpose(0, 3, 1, 2)

    if layout == "NHWC":
        shapes = (1, *size, channels), (*kernel, channels, each)
        out, bias = (1, high, wide, outputs), (1, 1, 1, outputs)
    else:
        shapes = (1, channels, *size), (channels, each, *kernel)
        out, bias = (1, outputs, high, wide), (1, outputs, 1, 1)
    return with_epilogue(
        draw(st.sampled_from(EPILOGUES)),
        f"conv2d_transpose {layout} kernel {kernel} stride {strides} padding {padding} "
        f"output padding {extra} groups {groups}",
        (Operand(shapes[0]), Operand(shapes[1], constant=True)),
        build,
        numpy,
        out,
        bias,
    )
