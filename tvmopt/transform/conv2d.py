"""TensorIR of grouped and ungrouped convolutions in NCHWc, HWNC and NHWC.

Each convolution is a padding stage and one reduction with affine indices. The innermost output axis
reads the weight with stride 1 (in a depthwise convolution the data too), so that schedules can
vectorise it. 16-bit floats accumulate in float32, integers in int32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import te, topi

from tvmopt.device import dtypes

#: Layouts of data, weight and result of a convolution of images with one channel, whose rows or
#: columns are contiguous, see :func:`conv2d_one_channel`.
ROWS = ("NHCW", "HIWO", "NHWC")
COLUMNS = ("NWCH", "WIHO", "NHWC")


def sum_dtype(data: str, out: str) -> str:
    """Return the accumulator dtype of a convolution with the given input and output dtypes."""
    row = dtypes.dtype(data)
    return row.accumulator if row.is_half or row.is_integer else out


def conv2d_blocked(
    data: te.Tensor,
    weight: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    out_dtype: str,
) -> te.Tensor:
    """Convolution in ``NCHW{c}c``.

    Args:
        data: (n, channels / c, h, w, c).
        weight: (outputs / o, channels / groups / i, kernel h, kernel w, i, o). For a depthwise
            convolution (channels / c, 1, kernel h, kernel w, 1, c).
        strides: Strides along h and w.
        padding: Top, left, bottom, right.
        dilation: Dilation along h and w.
        groups: Number of groups; blocks must not straddle groups.
        out_dtype: dtype of the result.

    Returns:
        (n, outputs / o, out h, out w, o).
    """
    batch, _, height, width, _ = ints(data.shape)
    out_outer, in_outer, kh, kw, in_inner, out_inner = ints(weight.shape)
    out_h, out_w = output_size((height, width), (kh, kw), strides, padding, dilation)
    sides = [(0, 0), (0, 0), (padding[0], padding[2]), (padding[1], padding[3]), (0, 0)]
    padded = pad_data(data, sides)
    acc = sum_dtype(str(data.dtype), out_dtype)
    ry, rx = te.reduce_axis((0, kh), "ry"), te.reduce_axis((0, kw), "rx")
    depthwise = in_outer * in_inner == 1 and groups == out_outer * out_inner
    shape = (batch, out_outer, out_h, out_w, out_inner)

    def place(y: Any, x: Any) -> tuple[Any, Any]:
        return (
            y * strides[0] + ry * dilation[0],
            x * strides[1] + rx * dilation[1],
        )

    if depthwise:
        return cast_result(
            te.compute(
                shape,
                lambda n, co, y, x, ci: te.sum(
                    padded[(n, co, *place(y, x), ci)].astype(acc)
                    * weight[co, 0, ry, rx, 0, ci].astype(acc),
                    axis=[ry, rx],
                ),
                name="conv2d",
            ),
            out_dtype,
        )
    ro, ri = te.reduce_axis((0, in_outer), "ro"), te.reduce_axis((0, in_inner), "ri")
    per_group = out_outer // groups

    def channel(co: Any) -> Any:
        return ro if groups == 1 else co // per_group * in_outer + ro

    return cast_result(
        te.compute(
            shape,
            lambda n, co, y, x, ci: te.sum(
                padded[(n, channel(co), *place(y, x), ri)].astype(acc)
                * weight[co, ro, ry, rx, ri, ci].astype(acc),
                axis=[ro, ry, rx, ri],
            ),
            name="conv2d",
        ),
        out_dtype,
    )


def conv2d_plain(
    data: te.Tensor,
    weight: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
    out_dtype: str,
    layouts: tuple[str, str],
) -> te.Tensor:
    """Convolution with data and weight in any permutation of ``NHWC`` and ``HWIO``.

    Args:
        data: Data in the layout ``layouts[0]``.
        weight: Weight in the layout ``layouts[1]``; I is channels / groups. Without groups it may
            have more input channels than the data, which is then zero-padded.
        strides: Strides along h and w.
        padding: Top, left, bottom, right.
        dilation: Dilation along h and w.
        groups: Number of groups.
        out_dtype: dtype of the result.
        layouts: Layouts of data and weight, such as ``("HWNC", "HWOI")``.

    Returns:
        The result in the data's layout.
    """
    data_layout, kernel_layout = layouts
    size = dict(zip(data_layout, ints(data.shape), strict=True))
    kernel = dict(zip(kernel_layout, ints(weight.shape), strict=True))
    out_h, out_w = output_size(
        (size["H"], size["W"]), (kernel["H"], kernel["W"]), strides, padding, dilation
    )
    missing = kernel["I"] * groups - size["C"]
    inside = {"H": (padding[0], padding[2]), "W": (padding[1], padding[3]), "C": (0, missing)}
    padded = pad_data(data, [inside.get(letter, (0, 0)) for letter in data_layout])
    acc = sum_dtype(str(data.dtype), out_dtype)
    ry, rx = te.reduce_axis((0, kernel["H"]), "ry"), te.reduce_axis((0, kernel["W"]), "rx")
    rc = te.reduce_axis((0, kernel["I"]), "rc")
    depthwise = kernel["I"] == 1 and kernel["O"] == groups
    per_group = kernel["O"] // groups
    out_size = {"N": size["N"], "H": out_h, "W": out_w, "C": kernel["O"]}

    def compute(*axes: Any) -> Any:
        at = dict(zip(data_layout, axes, strict=True))
        if depthwise:
            channel = at["C"]
        elif groups == 1:
            channel = rc
        else:
            channel = at["C"] // per_group * kernel["I"] + rc
        read = {
            "N": at["N"],
            "H": at["H"] * strides[0] + ry * dilation[0],
            "W": at["W"] * strides[1] + rx * dilation[1],
            "C": channel,
        }
        used = {"H": ry, "W": rx, "I": 0 if depthwise else rc, "O": at["C"]}
        value = padded[tuple(read[letter] for letter in data_layout)].astype(acc)
        factor = weight[tuple(used[letter] for letter in kernel_layout)].astype(acc)
        return te.sum(value * factor, axis=[ry, rx] if depthwise else [ry, rx, rc])

    shape = tuple(out_size[letter] for letter in data_layout)
    return cast_result(te.compute(shape, compute, name="conv2d"), out_dtype)


def conv2d_one_channel(
    data: te.Tensor,
    weight: te.Tensor,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    out_dtype: str,
    columns: bool,
) -> te.Tensor:
    """Convolution of images of one channel, with the contiguous axis of the kernel innermost in K.

    Args:
        data: (n, h, 1, w) for ``ROWS``; (n, w, 1, h) for ``COLUMNS``.
        weight: (kernel h, 1, kernel w, outputs), or (kernel w, 1, kernel h, outputs).
        strides: Strides along h and w.
        padding: Top, left, bottom, right.
        dilation: Dilation along h and w.
        out_dtype: dtype of the result.
        columns: Whether the layouts are ``COLUMNS``.

    Returns:
        (n, out h, out w, outputs).
    """
    batch, *size = (int(data.shape[axis]) for axis in (0, 1, 3))
    outer, _, inner, outputs = ints(weight.shape)
    if columns:
        strides, dilation = strides[::-1], dilation[::-1]
        padding = (padding[1], padding[0], padding[3], padding[2])
    out = output_size((size[0], size[1]), (outer, inner), strides, padding, dilation)
    sides = [(0, 0), (padding[0], padding[2]), (0, 0), (padding[1], padding[3])]
    padded = pad_data(data, sides)
    acc = sum_dtype(str(data.dtype), out_dtype)
    ro, ri = te.reduce_axis((0, outer), "ro"), te.reduce_axis((0, inner), "ri")

    def element(n: Any, y: Any, x: Any, o: Any) -> Any:
        a, b = (x, y) if columns else (y, x)
        read = (a * strides[0] + ro * dilation[0], 0, b * strides[1] + ri * dilation[1])
        value = padded[(n, *read)].astype(acc)
        return te.sum(value * weight[ro, 0, ri, o].astype(acc), axis=[ro, ri])

    shape = (batch, *(out[::-1] if columns else out), outputs)
    return cast_result(te.compute(shape, element, name="conv2d"), out_dtype)


def output_size(
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> tuple[int, int]:
    """Return output height and width of a convolution."""
    high, wide = (
        (size[k] + padding[k] + padding[k + 2] - (kernel[k] - 1) * dilation[k] - 1) // strides[k]
        + 1
        for k in (0, 1)
    )
    return high, wide


def pad_data(data: te.Tensor, sides: Sequence[tuple[int, int]]) -> te.Tensor:
    """Zero-pad ``data`` before and after each axis; return ``data`` itself without padding."""
    before, after = zip(*sides, strict=True)
    if not any((*before, *after)):
        return data
    return topi.nn.pad(data, list(before), list(after), name="pad")


def cast_result(result: te.Tensor, dtype: str) -> te.Tensor:
    """Return ``result`` cast to ``dtype``."""
    if str(result.dtype) == dtype:
        return result
    return te.compute(result.shape, lambda *at: result[at].astype(dtype), name="cast")


def ints(values: Any) -> list[int]:
    """Return static dimensions, strides, ... as Python integers."""
    return [int(v) for v in values]
