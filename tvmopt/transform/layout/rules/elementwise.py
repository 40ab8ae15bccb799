"""Layout rules of elementwise operators with broadcasting: one form for all operands."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvm import relax

from tvmopt.transform.layout.form import LayoutForm
from tvmopt.transform.layout.rules.base import (
    Follow,
    Needs,
    Operands,
    output_shape,
    positive,
    same,
)
from tvmopt.transform.layout.tensors import Tensor

UNARY = (
    "abs", "acos", "acosh", "asin", "asinh", "astype", "atan", "atanh", "bitwise_not", "ceil",
    "clip", "cos", "cosh", "erf", "exp", "floor", "isfinite", "isinf", "isnan", "log",
    "logical_not", "negative", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "square", "tan", "tanh", "trunc", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu",
    "nn.relu6", "nn.selu", "nn.silu", "nn.softplus",
)  # fmt: skip
BINARY = (
    "add", "atan2", "bitwise_and", "bitwise_or", "bitwise_xor", "divide", "equal",
    "floor_divide", "floor_mod", "greater", "greater_equal", "left_shift", "less", "less_equal",
    "log_add_exp", "logical_and", "logical_or", "logical_xor", "maximum", "minimum", "mod",
    "multiply", "not_equal", "power", "right_shift", "subtract", "where", "ewise_fma",
)  # fmt: skip


def elementwise(call: relax.Call, operands: Operands) -> Follow | None:
    """Unary and broadcasting operators; arguments that are not tensors do not change."""
    places = [
        k
        for k, arg in enumerate(call.args)
        if isinstance(arg.ty, relax.TensorType) and not _is_scalar(operands.tensor(arg))
    ]
    tensors = operands.tensors([call.args[k] for k in places])

    def emit(_: LayoutForm, exprs: Sequence[relax.Expr]) -> relax.Expr:
        args = list(call.args)
        for k, expr in zip(places, exprs, strict=True):
            args[k] = expr
        return relax.Call(call.op, args, call.attrs, call.ty_args)

    shape = output_shape(call)
    if not tensors or shape is None:
        return None
    return Follow(shape, lambda form: broadcast(tensors, form), emit, same)


def broadcast(tensors: Sequence[Tensor], form: LayoutForm) -> Needs | None:
    """Require each tensor in ``form``, with leading axes of extent 1 up to its rank."""
    if form.is_identity:
        return [(t, LayoutForm.identity(len(t.shape))) for t in tensors]
    lifted = [t.lifted(len(form.order)) for t in tensors]
    return [(t, form) for t in lifted] if all(form.fits(t.shape) for t in lifted) else None


def prelu(call: relax.Call, operands: Operands) -> Follow | None:
    """PReLU with slopes along one axis; a blocked form uses ``max(x, 0) + slope * min(x, 0)``."""
    tensors = operands.tensors(call.args)
    shape = output_shape(call)
    if tensors is None or shape is None:
        return None
    data, slope = tensors
    axis = positive(call.attrs.axis, len(shape))
    column = _column(slope, axis, len(shape))

    def needs(form: LayoutForm) -> Needs | None:
        if form.block(axis) is None:
            return [(data, form), (slope, LayoutForm.identity(1))]
        return broadcast([data, column], form) if column is not None else None

    def emit(form: LayoutForm, exprs: Sequence[relax.Expr]) -> relax.Expr:
        if form.block(axis) is None:
            return relax.op.nn.prelu(exprs[0], exprs[1], form.dim(axis))
        builder = operands.forms.builder
        zero = relax.const(0, data.dtype)
        low = builder.emit(relax.op.minimum(exprs[0], zero))
        high = builder.emit(relax.op.maximum(exprs[0], zero))
        return relax.op.add(high, builder.emit(relax.op.multiply(low, exprs[1])))

    return Follow(shape, needs, emit, same)


def _column(vector: Tensor, axis: int, rank: int) -> Tensor | None:
    """Return a constant vector as a tensor of rank ``rank`` along ``axis``."""
    if vector.data is None or vector.data.ndim != 1:
        return None
    shape = tuple(-1 if a == axis else 1 for a in range(rank))
    out = Tensor(vector.name, vector.data.reshape(shape).shape, vector.dtype)
    out.data = vector.data.reshape(shape)
    return out


def _is_scalar(tensor: Tensor | None) -> bool:
    """Return whether ``tensor`` is a constant scalar, which broadcasts in any form."""
    return tensor is not None and tensor.data is not None and math.prod(tensor.shape) == 1


def quantize(call: relax.Call, operands: Operands) -> Follow | None:
    """``quantize`` and ``dequantize``, per tensor or per channel along an unblocked axis."""
    data = operands.tensor(call.args[0])
    scales = operands.tensors(call.args[1:])
    shape = output_shape(call)
    if data is None or scales is None or shape is None:
        return None
    axis = positive(call.attrs.axis, len(shape))
    vector = any(math.prod(t.shape) > 1 for t in scales)

    def needs(form: LayoutForm) -> Needs | None:
        if vector and form.block(axis) is not None:
            return None
        return [(data, form), *((t, LayoutForm.identity(len(t.shape))) for t in scales)]

    def emit(form: LayoutForm, exprs: Sequence[relax.Expr]) -> relax.Expr:
        make = relax.op.quantize if call.op.name == "relax.quantize" else relax.op.dequantize
        place = form.dim(axis) if shape else -1
        return make(*exprs, axis=place, out_dtype=str(call.attrs.out_dtype))

    return Follow(shape, needs, emit, same)
