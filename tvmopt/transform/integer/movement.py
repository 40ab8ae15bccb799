"""Rules for data-movement operators: they move the integers.

before -> after: ``reshape(scale * (x - z))`` -> ``scale * (reshape(x) - z)``. Padding with a real
number pads with the quantized number. An accumulator is quantized first when a quantize follows
anyway: moving bytes is cheaper than moving int32, and these operators commute with quantization.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from tvm import relax

from tvmopt.transform.integer.context import Context, RuleResult, output_shape
from tvmopt.transform.integer.values import (
    Concatenated,
    Constant,
    Linear,
    QuantParams,
    Shape,
    Term,
    Value,
    static_shape,
)

MOVEMENTS = frozenset(
    "relax." + name
    for name in (
        "reshape", "permute_dims", "flatten", "squeeze", "expand_dims", "strided_slice", "take",
        "broadcast_to", "tile", "repeat", "flip", "gather_elements", "gather_nd",
        "dynamic_strided_slice", "nn.pixel_shuffle", "nn.pad", "image.resize2d",
        "nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d",
    )
)  # fmt: skip
"""Operators that commute with quantising. Max pooling is one: rounding is monotone."""


def move(ctx: Context, var: relax.Var, call: relax.Call) -> RuleResult:
    """Apply an operator of :data:`MOVEMENTS` to the integer tensor."""
    if not commutes(call):
        return None
    value = ctx.value(call.args[0])
    if isinstance(value, Constant):
        moved = _move_constant(value, call)
        if moved is not None:
            return moved
    source = _integers(ctx, var, call)
    if source is None:
        return None
    data, params = source
    shape = output_shape(call)
    if shape is None:
        return None
    term = data.terms[0]
    if call.op.name == "relax.nn.pad":
        number = _padding(data, call, params)
        if number is None:
            return None
        widths = [int(w) for w in call.attrs.pad_width]
        moved_call = relax.op.nn.pad(term.tensor, widths, call.attrs.pad_mode, float(number))
    else:
        rest = [ctx.emitter.floats(ctx.value(arg)) for arg in call.args[1:]]
        moved_call = relax.Call(call.op, [term.tensor, *rest], call.attrs, call.ty_args)
    return _moved(data, ctx.emitter.emit(moved_call), shape)


def split(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Split the integer tensor."""
    data = _movable(ctx, call.args[0])
    if data is None:
        return None
    pieces = ctx.emitter.emit(relax.Call(call.op, [data.terms[0].tensor], call.attrs))
    parts: list[Value] = []
    for i, field in enumerate(call.ty.fields):
        dims = getattr(field, "shape", None)
        if dims is None:
            return None
        piece = ctx.emitter.emit(relax.TupleGetItem(pieces, i))
        parts.append(_moved(data, piece, tuple(int(d) for d in dims)))
    return tuple(parts)


def concat(ctx: Context, _var: relax.Var, call: relax.Call) -> RuleResult:
    """Concatenate integer tensors with equal parameters; otherwise defer to the quantize."""
    parts = ctx.value(call.args[0])
    shape = output_shape(call)
    if not isinstance(parts, tuple) or shape is None or call.attrs.axis is None:
        return None
    if not any(isinstance(part, Linear | Concatenated) for part in parts):
        return None
    axis = int(call.attrs.axis)
    same = _same_parameters(parts)
    if same is None:
        return Concatenated(parts, axis)
    tensors = relax.Tuple([p.terms[0].tensor for p in parts if isinstance(p, Linear)])
    return _moved(same, ctx.emitter.emit(relax.op.concat(tensors, axis)), shape)


def commutes(call: relax.Call) -> bool:
    """Return whether ``call`` commutes with quantizing its first argument."""
    if call.op.name not in MOVEMENTS:
        return False
    if call.op.name == "relax.image.resize2d":
        return str(call.attrs.method) == "nearest_neighbor"
    if call.op.name == "relax.nn.pad":
        return str(call.attrs.pad_mode) in ("constant", "reflect", "replicate", "circular")
    return True


def _integers(
    ctx: Context, var: relax.Var, call: relax.Call
) -> tuple[Linear, QuantParams | None] | None:
    data = _movable(ctx, call.args[0])
    if data is not None:
        return data, None
    value = ctx.value(call.args[0])
    params = ctx.quantised_later(var)
    if not isinstance(value, Linear) or params is None:
        return None
    tensor = ctx.emitter.quantised(value, params)
    return Linear((Term(tensor, params.scale, -params.zero),), value.shape), params


def _movable(ctx: Context, arg: relax.Expr) -> Linear | None:
    """Return a narrow integer tensor with one positive scale; bounds and offset are kept."""
    value = ctx.linear(arg)
    if value is None or len(value.terms) != 1 or value.offset.ndim:
        return None
    term = value.terms[0]
    if term.dtype == "int32" or term.scale.ndim or term.shift.ndim or term.scale <= 0:
        return None
    return value


def _padding(data: Linear, call: relax.Call, params: QuantParams | None) -> int | None:
    """Return the quantized padding value; None when it is not representable."""
    if str(call.attrs.pad_mode) != "constant":
        return 0
    real = np.float32(call.attrs.pad_value)
    term = data.terms[0]
    if params is not None:
        return int(params.apply(np.asarray(real)))
    if data.offset.any() or not data.low <= real <= data.high:
        return None
    step = float(real) / float(term.scale) - int(term.shift)
    info = np.iinfo(term.dtype)
    if abs(step - round(step)) > 1e-5 or not info.min <= round(step) <= info.max:
        return None
    return round(step)


def _moved(data: Linear, tensor: relax.Expr, shape: Shape) -> Linear:
    term = dataclasses.replace(data.terms[0], tensor=tensor)
    return dataclasses.replace(data, terms=(term,), shape=shape)


def _same_parameters(parts: tuple[Value, ...]) -> Linear | None:
    """Return the first part when all parts are single tensors with equal parameters."""
    first = parts[0]
    if not isinstance(first, Linear):
        return None
    for part in parts:
        if not isinstance(part, Linear) or len(part.terms) != 1 or part.offset.any():
            return None
        term, model = part.terms[0], first.terms[0]
        if term.dtype == "int32" or term.dtype != model.dtype or term.scale.ndim:
            return None
        if term.scale != model.scale or not np.array_equal(term.shift, model.shift):
            return None
        if (part.low, part.high) != (first.low, first.high):
            return None
    return first


def _move_constant(value: Constant, call: relax.Call) -> Constant | None:
    """Reshape or transpose a weight or bias together with its scales."""
    shape = static_shape(call)
    if shape is None:
        return None
    if call.op.name == "relax.permute_dims":
        axes = None if call.attrs.axes is None else [int(a) for a in call.attrs.axes]
        data, scale, zero = (
            np.transpose(a, axes) if a.ndim else a for a in (value.data, value.scale, value.zero)
        )
        return Constant(np.ascontiguousarray(data), scale, zero)
    if call.op.name in ("relax.reshape", "relax.expand_dims", "relax.squeeze", "relax.flatten"):
        data = value.data.reshape(shape)
        scale, zero = (_reshaped(a, value.data.shape, shape) for a in (value.scale, value.zero))
        return Constant(data, scale, zero)
    return None


def _reshaped(array: np.ndarray, old: Shape, new: Shape) -> np.ndarray:
    """Return scales after a reshape: one per channel if possible, otherwise one per element."""
    if array.ndim == 0:
        return array
    axis = next((i for i, dim in enumerate(array.shape) if dim != 1), 0)
    before = int(np.prod(old[:axis], dtype=np.int64))
    for i, dim in enumerate(new):
        if dim == old[axis] and int(np.prod(new[:i], dtype=np.int64)) == before:
            return array.reshape([dim if j == i else 1 for j in range(len(new))])
    return np.broadcast_to(array, old).reshape(new)
