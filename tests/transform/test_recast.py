"""Recasting of layers to another dtype: module before and after, results, messages."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.transform.anchors import INDICES_ATTR, NAMES_ATTR, anchors, with_layers
from tvmopt.transform.lower import lower
from tvmopt.transform.recast import DTYPES, recast

op = relax.op
TARGET = resolve_target("host", 1)
RNG = np.random.default_rng(0)
# Integers and a fraction that truncation removes.
W = (RNG.integers(-3, 4, (4, 4, 3, 3)) + 0.25).astype(np.float32)
M = RNG.integers(-3, 4, (4, 5)).astype(np.float32)
IMAGE = {"x": ((1, 4, 6, 6), "float32")}


def _body(emit, x):
    x = emit(op.nn.relu(emit(op.nn.conv2d(x, relax.const(W), padding=1))))
    x = emit(op.nn.conv2d(x, relax.const(W), strides=2, groups=1))
    x = emit(op.permute_dims(x, [0, 2, 3, 1]))
    return emit(op.matmul(x, relax.const(M)))


def _recast_body(dtype, out_dtype, layers=(0, 1, 2)):
    def half(array):
        return relax.const(np.trunc(array).astype(np.int8) if "int" in dtype else array, dtype)

    def body(emit, x):
        def layer(number, x, weight, make):
            if number not in layers:
                return emit(make(x, relax.const(weight), None))
            y = emit(make(emit(op.astype(x, dtype)), half(weight), out_dtype))
            return y if out_dtype == "float32" else emit(op.astype(y, "float32"))

        x = layer(0, x, W, lambda d, w, o: op.nn.conv2d(d, w, padding=1, out_dtype=o))
        x = emit(op.nn.relu(x))
        x = layer(1, x, W, lambda d, w, o: op.nn.conv2d(d, w, strides=2, out_dtype=o))
        x = emit(op.permute_dims(x, [0, 2, 3, 1]))
        return layer(2, x, M, lambda d, w, o: op.matmul(d, w, o))

    return body


@pytest.fixture
def mod(relax_main):
    return relax_main(_body, **IMAGE)


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [("int8", "int32"), ("int8", "float32"), ("float16", "float32"), ("float16", "float16")],
)
def test_structure(mod, relax_main, assert_same, dtype, out_dtype):
    assert_same(recast(mod, dtype, out_dtype), relax_main(_recast_body(dtype, out_dtype), **IMAGE))


@pytest.mark.parametrize(
    ("kept", "layers"),
    [
        ({"skip_layers": [0]}, (1, 2)),
        ({"skip_layers": "0,matmul"}, (1,)),
        ({"ops": "nn.conv2d"}, (0, 1)),
        ({"ops": ["matmul"]}, (2,)),
        ({"ops": ["relax.nn.conv2d"], "skip_layers": [0]}, (1,)),
    ],
)
def test_some_layers(mod, relax_main, assert_same, kept, layers):
    want = relax_main(_recast_body("int8", "int32", layers), **IMAGE)
    assert_same(recast(mod, "int8", "int32", **kept), want)


def test_no_layer_left_changes_nothing(mod):
    assert recast(mod, "int8", "int32", skip_layers=[0, 1, 2]).same_as(mod)
    assert recast(mod, "int8", "int32", ops=["nn.conv3d"]).same_as(mod)


def test_layers_stay(mod):
    mod = with_layers(mod, ["stem", "body", "head"], [0, 1, 2])
    out = recast(mod, "uint8", "int32", skip_layers=["body"])
    assert [a.name for a in anchors(out)] == ["stem", "body", "head"]
    assert list(out["main"].attrs[NAMES_ATTR]) == ["stem", "body", "head"]
    assert list(out["main"].attrs[INDICES_ATTR]) == [0, 1, 2]
    assert out["main"].attrs["num_input"] == 1
    assert [str(a.call.args[0].ty.dtype) for a in anchors(out)] == ["uint8", "float32", "uint8"]
    for old, new in zip(anchors(mod)[:2], anchors(out)[:2], strict=True):
        for field in ("strides", "padding", "dilation", "groups", "data_layout", "kernel_layout"):
            assert getattr(new.call.attrs, field) == getattr(old.call.attrs, field)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("out_dtype", ["int32", "float32", "float16", "int8"])
def test_prints_and_is_saved(mod, dtype, out_dtype):
    out = recast(mod, dtype, out_dtype, skip_layers=[0])
    assert f'dtype="{dtype}"' in out.script()
    again = tvm.ir.load_json(tvm.ir.save_json(out))
    tvm.ir.assert_structural_equal(again, out)
    assert out["main"].ret_ty.dtype == "float32"
    assert [str(a.call.ty.dtype) for a in anchors(out)] == ["float32", out_dtype, out_dtype]


def test_int4_constants_stay_casts(mod):
    weight = anchors(recast(mod, "int4", "int32"))[0].call.args[1]
    assert isinstance(weight, relax.Var)  # TVM has no int4 tensors
    assert str(weight.ty.dtype) == "int4"


@pytest.mark.parametrize(
    ("data", "kernel", "shape", "weight"),
    [
        ("NHWC", "HWIO", (1, 6, 6, 4), (3, 3, 4, 4)),
        ("HWNC", "HWOI", (6, 6, 1, 4), (3, 3, 4, 4)),
        ("NCHW16c", "OIHW16i16o", (1, 1, 6, 6, 16), (1, 1, 3, 3, 16, 16)),
    ],
)
def test_layouts(relax_main, data, kernel, shape, weight):
    w = np.ones(weight, np.float32)
    mod = relax_main(
        lambda emit, x: emit(
            op.nn.conv2d(x, relax.const(w), data_layout=data, kernel_layout=kernel)
        ),
        x=(shape, "float32"),
    )
    [before], [after] = anchors(mod), anchors(recast(mod, "int8", "int32"))
    assert after.call.attrs.data_layout == data
    assert after.call.attrs.kernel_layout == kernel
    assert list(after.call.ty.shape) == list(before.call.ty.shape)
    assert str(after.call.ty.dtype) == "int32"


def _convolve(x, w, strides, pad):
    x = np.pad(x, [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))
    return np.einsum("nchwij,ocij->nohw", windows[:, :, ::strides, ::strides], w)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [
        ("int8", "int32"), ("uint8", "int32"), ("int8", "float32"),
        ("float16", "float32"), ("bfloat16", "float32"), ("float16", "float16"),
    ],
)  # fmt: skip
def test_numbers(mod, tmp_path, dtype, out_dtype):
    x = RNG.uniform(0, 2, IMAGE["x"][0]).astype(np.float32)
    numpy_type = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)

    def cast(array):
        if "int" in dtype:
            info = np.iinfo(dtype)
            array = np.clip(np.trunc(array), info.min, info.max)
        return array.astype(numpy_type).astype(np.float64)

    # uint8 has no negative values, so only the first layer is cast: its operands are in range.
    one = {"skip_layers": [1, 2]}
    y = np.maximum(_convolve(cast(x), cast(W), 1, 1), 0)
    want = _convolve(y, W, 2, 0).transpose(0, 2, 3, 1) @ M
    path = tmp_path / "model.so"
    lowered = lower(recast(mod, dtype, out_dtype, **one), TARGET.to_tvm())
    build_library(lowered, TARGET, path, quick=True)
    [got] = loaded(path)(x)
    tolerance = 1e-2 if out_dtype == "float16" else 1e-5
    assert np.abs(got - want).max() < tolerance * np.abs(want).max()


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_weights_are_truncated_and_saturated(relax_main, dtype):
    w = np.array([[0.9, -0.9, 300.0, -300.0, 1.5, -1.5, 127.6, 254.9]], np.float32)
    mod = relax_main(lambda emit, x: emit(op.matmul(x, relax.const(w))), x=((1, 1), "float32"))
    [layer] = anchors(recast(mod, dtype, "int32"))
    want = {
        "int8": [0, 0, 127, -128, 1, -1, 127, 127],
        "uint8": [0, 0, 255, 0, 1, 0, 127, 254],
    }[dtype]
    assert layer.call.args[1].value.numpy().tolist() == [want]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("int16", "int32"), "dtype must be one of int4, .*, bfloat16, but got 'int16'"),
        (("float32", "float32"), "dtype must be one of .* but got 'float32'"),
        (("int8", "int64"), "out_dtype must be one of .*, float32, but got 'int64'"),
        (("int8", "int32", "nn.relu"), "ops must be anchor operators .* but got 'nn.relu'"),
        (("int8", "int32", ["einsum"]), "output type .* but got 'einsum'; leave it out"),
        (("int8", "int32", None, [7]), "7 matches none of the layers 0 to 2"),
        (("int8", "int32", None, "nothing*"), r"'nothing\*' matches none"),
    ],
)
def test_wrong_parameters(mod, arguments, message):
    with pytest.raises(ConfigError, match=message):
        recast(mod, *arguments)
