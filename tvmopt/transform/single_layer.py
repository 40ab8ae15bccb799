"""A layer of a converted module alone, in some dtype, for predictions of its time."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax

from tvmopt.device import dtypes
from tvmopt.device.arch import Arch
from tvmopt.transform.anchors import anchors
from tvmopt.transform.precision.anchor_call import (
    TYPED_ANCHORS,
    constant_data,
    operand_dtypes,
    with_operands,
)

FLOAT = "float32"
FLOAT_OPERANDS = (FLOAT, FLOAT)
# A factor of the requantization; its value does not change the kernel.
_SCALE = 0.01


def layout_of_layers(arch: Arch) -> str:
    """Return the layout in which to predict and to time convolutions alone.

    It is the one that the device's kernels require. Where several compete it is NHWC, since NCHW
    has no dot products of narrow dtypes.
    """
    return arch.layout or "NHWC"


def only_layer(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the one layer of a converted module as :func:`single_layer` does.

    Changes of dtype and layout at the edges of the module are left out; inside a network the layer
    has none. A module with no layer of :data:`TYPED_ANCHORS`, or with several, stays as it is.
    """
    found = anchors(mod)
    if len(found) != 1 or found[0].op not in TYPED_ANCHORS:
        return mod
    return single_layer(found[0].call, operand_dtypes(found[0].call))


def single_layer(call: relax.Call, operands: tuple[str, str]) -> tvm.IRModule:
    """Return a module of one layer with an epilogue that stores its result as its data.

    before -> after, for an int8 layer with its own operands, and with ``FLOAT_OPERANDS``::

        conv2d(x: uint8, w: int8)  ->  astype(clip(round(conv2d(x, w) * scale)), uint8)
        conv2d(x: uint8, w: int8)  ->  relu(conv2d(x: float32, w: float32))

    Values of weights and scales are not kept; shapes, layouts and attributes are.

    Args:
        call: A call of one of :data:`~tvmopt.transform.precision.anchor_call.TYPED_ANCHORS`, whose
            operands have static shapes.
        operands: Dtypes of data and weight: two equal floats, or two integers of 8 bits.
    """
    data_dtype, weight_dtype = operands
    accumulator = FLOAT if dtypes.dtype(data_dtype).is_float else "int32"
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType(call.args[0].ty.shape, data_dtype))
    weight = _weight(call, weight_dtype)
    params = [data, weight] if isinstance(weight, relax.Var) else [data]
    with builder.function("main", params):
        with builder.dataflow():
            value = builder.emit(with_operands(call, data, weight, accumulator))
            result = builder.emit_output(_stored(builder, value, data_dtype))
        builder.emit_func_output(result)
    return builder.get()


def _weight(call: relax.Call, dtype: str) -> relax.Expr:
    """Return the second operand: a constant where it is one, so that it may be prepacked."""
    weight = call.args[1]
    data = constant_data(weight)
    if data is None:
        return relax.Var("weight", relax.TensorType(weight.ty.shape, dtype))
    if str(data.dtype) == dtype:
        return weight
    shape = [int(extent) for extent in data.shape]
    return relax.const(np.zeros(shape, dtypes.dtype(dtype).numpy), dtype)


def _stored(builder: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    """Return the accumulator ``value`` after a typical epilogue that stores ``dtype``."""
    row = dtypes.dtype(dtype)
    if row.is_float:
        rectified = builder.emit(relax.op.nn.relu(value))
        return rectified if dtype == FLOAT else relax.op.astype(rectified, dtype)
    scaled = builder.emit(relax.op.astype(value, FLOAT))
    scaled = builder.emit(relax.op.multiply(scaled, relax.const(np.float32(_SCALE))))
    rounded = builder.emit(relax.op.round(scaled))
    clipped = builder.emit(relax.op.clip(rounded, float(row.lowest), float(row.highest)))
    return relax.op.astype(clipped, dtype)


def layer_key(call: relax.Call) -> tuple[object, ...]:
    """Return a key that is equal for layers of equal operators, shapes, dtypes and attributes."""
    operands = tuple(
        (str(arg.ty.dtype), tuple(map(str, arg.ty.shape)), constant_data(arg) is None)
        for arg in call.args[:2]
    )
    return call.op.name, operands, str(call.attrs)
