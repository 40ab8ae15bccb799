"""Rules for convolution and matmul: integer operands, int32 accumulator.

before -> after, x quantized with zero point z, w with zero point v:
    conv2d(sx * (x - z), sw * (w - v)) -> sx * sw * (conv2d(pad(x, z), w - v) - z * sum(w - v))

The padding value is the zero point. The second summand is then one number per channel, and joins
the bias. ``w - v`` is a constant: int8 when it fits, as for symmetric weights, otherwise int16. A
matmul of two activations subtracts their row and column sums instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from tvm import relax

from tvmopt.device.dtypes import BYTE_INTEGERS
from tvmopt.transform.integer.context import Context, output_shape
from tvmopt.transform.integer.values import (
    Constant,
    Linear,
    Term,
    along_axis,
    array_of,
    static_shape,
    varies_only_along,
    with_rank,
)


def convolution(ctx: Context, call: relax.Call) -> Linear | str:
    """Lower conv1d, conv2d, conv3d and their transposes, or return why the layer stays in float."""
    data = _activation(ctx, call.args[0])
    if isinstance(data, str):
        return data
    weight = ctx.value(call.args[1])
    transposed = call.op.name.endswith("_transpose")
    reason = _weight_problem(ctx, call, transposed)
    if reason:
        return reason
    shape = output_shape(call)
    if shape is None or str(call.ty.dtype) != "float32":
        return "its output has no static float32 type"
    assert isinstance(weight, Constant)
    kernel = _centred(weight)
    groups = int(call.attrs.groups)
    term, tensor, padding = data.terms[0], data.terms[0].tensor, list(call.attrs.padding)
    zero = -int(term.shift)
    if transposed and zero:
        # A transposed convolution inserts zeros between the elements, and these must stay zeros.
        tensor = ctx.emitter.emit(relax.op.astype(tensor, "int16"))
        tensor = ctx.emitter.emit(relax.op.subtract(tensor, relax.const(zero, "int16")))
        zero = 0
    elif zero and any(int(p) for p in padding):
        tensor = ctx.emitter.emit(_pad(tensor, [int(p) for p in padding], zero))
        padding = [0] * len(padding)
    accumulator = ctx.emitter.emit(_convolve(call, tensor, kernel, padding))
    axis = 1 if transposed else 0
    scale = weight.scale.reshape(-1)
    if transposed and scale.size > 1:
        scale = np.tile(scale, groups)
    others = tuple(i for i in range(kernel.ndim) if i != axis)
    shift = np.asarray(-zero * kernel.sum(axis=others, dtype=np.int64)).astype(np.int32)
    return Linear(
        (
            Term(
                accumulator,
                along_axis((term.scale * scale).astype(np.float32), 1, len(shape)),
                along_axis(shift, 1, len(shape)) if zero else np.zeros((), np.int32),
            ),
        ),
        shape,
    )


def matmul(ctx: Context, call: relax.Call) -> Linear | str:
    """Lower a matmul with a constant or of two activations, or return why it stays in float."""
    shape = output_shape(call)
    if shape is None or str(call.ty.dtype) != "float32":
        return "its output has no static float32 type"
    ranks = [len(static_shape(arg) or ()) for arg in call.args]
    if min(ranks) < 2:
        return "an operand is a vector"
    sides = []
    for arg, axis in zip(call.args, (-2, -1), strict=True):
        side = _operand(ctx, arg, axis)
        if isinstance(side, str):
            return side
        sides.append(side)
    (a, a_scale, a_zero), (b, b_scale, b_zero) = sides
    product = relax.op.matmul(_as_expr(a), _as_expr(b), out_dtype="int32")
    accumulator = ctx.emitter.emit(product, "")
    depth = (static_shape(call.args[0]) or ())[-1]
    shift = np.full((), depth * a_zero * b_zero, np.int32)
    # (a - p) (b - q) = a b - q * rows(a) - p * columns(b) + depth * p * q
    for tensor, axis, factor in ((a, -1, b_zero), (b, -2, a_zero)):
        if not factor:
            continue
        if isinstance(tensor, np.ndarray):
            total = tensor.sum(axis=axis, keepdims=True, dtype=np.int64) * factor
            shift = (shift - with_rank(total, len(shape))).astype(np.int32)
            continue
        wide = ctx.emitter.emit(relax.op.astype(tensor, "int32"))
        sums = ctx.emitter.emit(relax.op.sum(wide, [axis], keepdims=True))
        if factor != 1:
            sums = ctx.emitter.emit(relax.op.multiply(sums, relax.const(factor, "int32")))
        accumulator = ctx.emitter.emit(relax.op.subtract(accumulator, sums))
    scale = (a_scale * b_scale).astype(np.float32)
    return Linear((Term(accumulator, with_rank(scale, len(shape)), shift),), shape)


def _activation(ctx: Context, arg: relax.Expr) -> Linear | str:
    data = ctx.quantised(arg)
    if data is None:
        value = ctx.value(arg)
        if not isinstance(value, Linear) or value.accumulates:
            return "input is not quantised"
        term = value.terms[0]
        if len(value.terms) == 1 and term.dtype in BYTE_INTEGERS and term.scale.ndim:
            return "input is quantised per channel"
        return "input is not quantised to one tensor"
    if data.terms[0].dtype not in BYTE_INTEGERS:
        return f"input is {data.terms[0].dtype}"
    return data


def _operand(
    ctx: Context, arg: relax.Expr, axis: int
) -> tuple[np.ndarray | relax.Expr, np.ndarray, int] | str:
    """Return integers, scale and zero point of an operand; constants have zero point 0."""
    value = ctx.value(arg)
    if isinstance(value, Constant):
        if str(value.data.dtype) not in BYTE_INTEGERS:
            return f"weights are {value.data.dtype}"
        if not all(varies_only_along(q, axis) for q in (value.scale, value.zero)):
            return "weights are quantised along another axis"
        return _centred(value), value.scale, 0
    if array_of(value) is not None:
        return "weights are not quantised"
    data = _activation(ctx, arg)
    if isinstance(data, str):
        return data
    return data.terms[0].tensor, data.terms[0].scale, -int(data.terms[0].shift)


def _weight_problem(ctx: Context, call: relax.Call, transposed: bool) -> str:
    weight = ctx.value(call.args[1])
    if not isinstance(weight, Constant):
        return "weights are not quantised"
    if str(weight.data.dtype) not in BYTE_INTEGERS:
        return f"weights are {weight.data.dtype}"
    axis = 1 if transposed else 0
    if not all(varies_only_along(q, axis) for q in (weight.scale, weight.zero)):
        return "weights are not quantised per output channel"
    layouts = (str(call.attrs.data_layout), str(call.attrs.kernel_layout))
    if not (layouts[0].startswith("NC") and layouts[1].startswith("IO" if transposed else "OI")):
        return f"layout {layouts[0]} with {layouts[1]} is not that of an imported model"
    return ""


def _centred(weight: Constant) -> np.ndarray:
    """Return weights minus their zero point, in the narrowest dtype that holds them."""
    centred = weight.data.astype(np.int32) - weight.zero
    for dtype in ("int8", str(weight.data.dtype)):
        info = np.iinfo(dtype)
        if centred.size == 0 or (centred.min() >= info.min and centred.max() <= info.max):
            return centred.astype(dtype)
    return centred.astype(np.int16)


def _as_expr(operand: np.ndarray | relax.Expr) -> relax.Expr:
    return relax.const(operand) if isinstance(operand, np.ndarray) else operand


def _pad(tensor: relax.Expr, padding: list[int], zero: int) -> relax.Expr:
    half = len(padding) // 2
    widths = [0, 0, 0, 0]
    for before, after in zip(padding[:half], padding[half:], strict=True):
        widths += [before, after]
    return relax.op.nn.pad(tensor, widths, pad_value=float(zero))


def _convolve(
    call: relax.Call, tensor: relax.Expr, kernel: np.ndarray, padding: list[Any]
) -> relax.Expr:
    attrs = call.attrs
    options: dict[str, Any] = {
        "strides": list(attrs.strides),
        "padding": padding,
        "dilation": list(attrs.dilation),
        "groups": attrs.groups,
        "data_layout": attrs.data_layout,
        "kernel_layout": attrs.kernel_layout,
        "out_layout": attrs.out_layout,
        "out_dtype": "int32",
    }
    if call.op.name.endswith("_transpose"):
        options["output_padding"] = list(attrs.output_padding)
    make = getattr(relax.op.nn, call.op.name.removeprefix("relax.nn."))
    return make(tensor, relax.const(kernel), **options)
