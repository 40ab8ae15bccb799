"""Legalise convolutions of few input channels to the packed form of the Hopper kernel.

Before -> after: ``conv2d(x, w)`` with NHWC data of 3 channels and an HWIO weight becomes
``lines(padded(x), packed(w))``. ``padded`` zero-pads the border and the channels, so that windows
begin at multiples of 16 bytes. ``packed`` lays out the weight alike; a constant weight is folded.
:mod:`.match` matches ``lines`` as a
:class:`~tvmopt.kernels.cuda.hopper.few_channels_problem.FewChannelsProblem`.
"""

from __future__ import annotations

import math

from tvm import relax, te, tirx
from tvm.ir import Expr

from tvmopt.kernels.cuda.hopper.few_channels_problem import FewChannelsProblem, few_channels_problem

# Output pixels up to which a convolution is a memory-bound GEMV-like product.
_FEW_PIXELS = 8


def padded(x: te.Tensor, p: FewChannelsProblem, padding: tuple[int, int], stride: int) -> te.Tensor:
    """Return the zero-padded image with its pixels flattened: (images, height, width).

    Args:
        x: The image, NHWC.
        p: The packed problem.
        padding: Padding at the top and at the left.
        stride: Stride across.
    """
    _, height, width, channels = (int(d) for d in x.shape)
    filled = p.column_stride // stride

    def value(n: Expr, y: Expr, q: Expr) -> Expr:
        row, column, channel = y - padding[0], q // filled - padding[1], q % filled
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width, channel < channels)
        return tirx.if_then_else(inside, x[n, row, column, channel], tirx.const(0, str(x.dtype)))

    return te.compute((p.images, p.height, p.width), value, name="padded")


def packed(weight: te.Tensor, p: FewChannelsProblem, stride: int) -> te.Tensor:
    """Return the weight (HWIO) in the layout of ``p``: (filters, kernel rows, window)."""
    _, kw, channels, _ = (int(d) for d in weight.shape)
    filled = p.column_stride // stride

    def value(o: Expr, g: Expr, e: Expr) -> Expr:
        column, channel = e // filled, e % filled
        inside = tirx.all(column < kw, channel < channels)
        return tirx.if_then_else(
            inside, weight[g, column, channel, o], tirx.const(0, str(weight.dtype))
        )

    return te.compute((p.filters, p.kernel_rows, p.window), value, name="packed")


def lines(x: te.Tensor, weight: te.Tensor, p: FewChannelsProblem) -> te.Tensor:
    """Return the convolution of packed image and weight, in NHWC."""
    g = te.reduce_axis((0, p.kernel_rows), "g")
    e = te.reduce_axis((0, p.window), "e")

    def value(n: Expr, y: Expr, w: Expr, o: Expr) -> Expr:
        pixel = x[n, y * p.row_stride + g, w * p.column_stride + e].astype("float32")
        return te.sum(pixel * weight[o, g, e].astype("float32"), axis=[g, e])

    total = te.compute((p.images, *p.out_size, p.filters), value, name="lines")
    if p.out == "float32":
        return total
    return te.compute(total.shape, lambda *at: total[at].astype(p.out), name="cast")


def legalize_few_channels(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr | None:
    """Legalise a ``relax.nn.conv2d`` call to the packed form; None where it does not apply.

    For ``relax.transform.LegalizeOps``. The result calls TensorIR PrimFuncs.
    """
    attrs, (data, weight) = call.attrs, call.args
    layouts = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout))
    if layouts != ("NHWC", "HWIO", "NHWC") or int(attrs.groups) != 1:
        return None
    sizes = [*(data.ty.shape or [None]), *(weight.ty.shape or [None])]
    if not all(isinstance(d, tirx.IntImm) for d in sizes):
        return None
    if any(int(d) != 1 for d in attrs.dilation):
        return None
    images, height, width, channels, kh, kw, _, filters = (int(d) for d in sizes)
    top, left, bottom, right = (int(d) for d in attrs.padding)
    stride = (int(attrs.strides[0]), int(attrs.strides[1]))
    problem = few_channels_problem(
        images, height, width, channels, filters, (kh, kw), stride, (top, left, bottom, right),
        str(data.ty.dtype), str(call.ty.dtype),
    )  # fmt: skip
    if problem is None or images * math.prod(problem.out_size) <= _FEW_PIXELS:
        return None
    across = stride[1]

    def pad(x: te.Tensor) -> te.Tensor:
        return padded(x, problem, (top, left), across)

    def pack(w: te.Tensor) -> te.Tensor:
        return packed(w, problem, across)

    def multiply(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        return lines(x, w, problem)

    image = builder.emit_te(pad, data, primfunc_name_hint="padded")
    folded = builder.emit_te(pack, weight, primfunc_name_hint="packed")
    return builder.call_te(multiply, image, folded, primfunc_name_hint="conv2d_lines")
