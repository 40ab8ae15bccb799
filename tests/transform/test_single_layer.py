"""A layer alone: its dtypes, shapes and attributes."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.transform.anchors import anchors
from tvmopt.transform.lower import lower
from tvmopt.transform.single_layer import FLOAT_OPERANDS, layer_key, single_layer


def convolution(data_dtype, weight_dtype, out_dtype, constant=True, strides=(2, 1)):
    builder = relax.BlockBuilder()
    data = relax.Var("x", relax.TensorType((1, 12, 10, 8), data_dtype))
    shape = (3, 3, 8, 16)
    if constant:
        weight, params = relax.const(np.ones(shape, weight_dtype), weight_dtype), [data]
    else:
        weight = relax.Var("w", relax.TensorType(shape, weight_dtype))
        params = [data, weight]
    with builder.function("main", params):
        with builder.dataflow():
            value = relax.op.nn.conv2d(
                data, weight, strides=strides, padding=(1, 1, 1, 1), data_layout="NHWC",
                kernel_layout="HWIO", out_dtype=out_dtype,
            )  # fmt: skip
            result = builder.emit_output(builder.emit(value))
        builder.emit_func_output(result)
    [anchor] = anchors(builder.get())
    return anchor.call


@pytest.mark.parametrize(
    ("dtypes", "operands", "accumulator"),
    [
        (("float32", "float32", "float32"), FLOAT_OPERANDS, "float32"),
        (("float32", "float32", "float32"), ("uint8", "int8"), "int32"),
        (("float32", "float32", "float32"), ("bfloat16", "bfloat16"), "float32"),
        (("uint8", "int8", "int32"), ("uint8", "int8"), "int32"),
        (("int8", "int8", "int32"), ("int8", "int8"), "int32"),
        (("uint8", "int8", "int32"), FLOAT_OPERANDS, "float32"),
        (("float16", "float16", "float32"), ("float16", "float16"), "float32"),
        (("float16", "float16", "float32"), FLOAT_OPERANDS, "float32"),
    ],
)
def test_dtypes_and_attributes(dtypes, operands, accumulator):
    call = convolution(*dtypes)
    mod = single_layer(call, operands)
    [anchor] = anchors(mod)
    assert tuple(str(arg.ty.dtype) for arg in anchor.call.args) == operands
    assert str(anchor.call.ty.dtype) == accumulator
    assert list(map(int, anchor.call.ty.shape)) == list(map(int, call.ty.shape))
    for name in ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout"):
        assert str(getattr(anchor.call.attrs, name)) == str(getattr(call.attrs, name))
    assert str(mod["main"].ret_ty.dtype) == operands[0]
    lower(mod, resolve_target("sapphirerapids", 2).to_tvm())  # every operator has a kernel


def test_a_weight_that_is_no_constant_stays_an_input():
    call = convolution("float32", "float32", "float32", constant=False)
    mod = single_layer(call, FLOAT_OPERANDS)
    assert len(mod["main"].params) == 2


def test_keys_tell_layers_apart():
    one = convolution("float32", "float32", "float32")
    assert layer_key(one) == layer_key(convolution("float32", "float32", "float32"))
    others = [
        convolution("float16", "float16", "float32"),
        convolution("float32", "float32", "float32", constant=False),
        convolution("float32", "float32", "float32", strides=(1, 1)),
    ]
    assert len({layer_key(call) for call in (one, *others)}) == 4
