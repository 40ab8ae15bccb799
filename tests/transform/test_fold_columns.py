"""Columns of a kernel as K: structure, exact integers, and the last windows of a row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tvm import relax

from tests.libraries import loaded
from tests.transform.test_legalize import numpy_conv2d
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.transform.fold_columns import FoldColumns
from tvmopt.transform.lower import lower

op, nn = relax.op, relax.op.nn
LAYOUT = {"data_layout": "NHWC", "kernel_layout": "HWIO", "out_layout": "NHWC"}
ZEN4 = resolve_target("znver4", 2)
PASS = FoldColumns(ZEN4.to_tvm())


def weight(*shape, dtype="int8"):
    rng = np.random.default_rng(1)
    if dtype == "bfloat16":
        return rng.standard_normal(shape, np.float32).astype(ml_dtypes.bfloat16)
    return rng.integers(-128, 128, shape).astype(dtype)


def conv(x, w, **settings):
    out = "float32" if str(x.ty.dtype) == "bfloat16" else "int32"
    return nn.conv2d(x, w, **{**LAYOUT, "out_dtype": out, **settings})


def of_rows(x, w, **settings):
    layouts = {"data_layout": "NHCW", "kernel_layout": "HIWO", "out_layout": "NHWC"}
    return conv(x, w, **layouts, **settings)


def test_columns_are_filled_up_to_whole_groups(relax_main, assert_same) -> None:
    w = weight(3, 7, 1, 16)

    def before(emit, x):
        return emit(conv(x, relax.const(w), strides=(2, 2), padding=(1, 3, 1, 3)))

    def after(emit, x):
        image = emit(op.reshape(x, (1, 31, 1, 31)))
        kernel = emit(op.reshape(relax.const(w), (3, 1, 7, 16)))
        image = emit(nn.pad(image, [0, 0, 1, 1, 0, 0, 3, 4]))
        kernel = emit(nn.pad(kernel, [0, 0, 0, 0, 0, 1, 0, 0]))
        return emit(of_rows(image, kernel, strides=(2, 2)))

    x = ((1, 31, 31, 1), "uint8")
    assert_same(PASS(relax_main(before, x=x)), relax_main(after, x=x))


def test_one_channel_needs_no_padding(relax_main, assert_same) -> None:
    w = weight(1, 80, 1, 64)

    def before(emit, x):
        return emit(conv(x, relax.const(w), strides=(1, 4)))

    def after(emit, x):
        image = emit(op.reshape(x, (1, 1, 1, 16000)))
        kernel = emit(op.reshape(relax.const(w), (1, 1, 80, 64)))
        return emit(of_rows(image, kernel, strides=(1, 4)))

    x = ((1, 1, 16000, 1), "uint8")
    assert_same(PASS(relax_main(before, x=x)), relax_main(after, x=x))


def test_rows_of_a_kernel_of_one_column(relax_main, assert_same) -> None:
    w = weight(6, 1, 1, 8)
    layouts = {"data_layout": "NWCH", "kernel_layout": "WIHO"}

    def before(emit, x):
        return emit(conv(x, relax.const(w), strides=(2, 1), padding=(2, 0, 3, 0)))

    def after(emit, x):
        image = emit(op.permute_dims(x, [0, 2, 3, 1]))
        kernel = emit(op.permute_dims(relax.const(w), [1, 2, 0, 3]))
        image = emit(nn.pad(image, [0, 0, 0, 0, 0, 0, 2, 5]))
        kernel = emit(nn.pad(kernel, [0, 0, 0, 0, 0, 2, 0, 0]))
        return emit(conv(image, kernel, strides=(2, 1), **layouts))

    x = ((1, 41, 5, 1), "uint8")
    assert_same(PASS(relax_main(before, x=x)), relax_main(after, x=x))


LEFT_ALONE = {
    "three channels": ((1, 9, 9, 3), "uint8", {}),
    "dilated": ((1, 9, 9, 1), "uint8", {"dilation": (1, 2)}),
    "float32": ((1, 9, 9, 1), "float32", {}),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_left_alone(relax_main, name: str) -> None:
    shape, dtype, settings_ = LEFT_ALONE[name]
    w = weight(3, 3, shape[3], 8, dtype="float32" if dtype == "float32" else "int8")
    mod = relax_main(lambda emit, x: emit(conv(x, relax.const(w), **settings_)), x=(shape, dtype))
    tvm.ir.assert_structural_equal(PASS(mod), mod)


def test_a_result_of_a_convolution_is_padded_by_the_next(relax_main, assert_same) -> None:
    def first(emit, x):
        y = emit(conv(x, relax.const(weight(1, 1, 8, 1))))
        return emit(op.astype(y, "uint8"))

    def before(emit, x):
        return emit(conv(first(emit, x), relax.const(weight(3, 4, 1, 8)), padding=(1, 1, 1, 1)))

    def after(emit, x):
        image = emit(op.reshape(first(emit, x), (1, 9, 1, 9)))
        kernel = emit(op.reshape(relax.const(weight(3, 4, 1, 8)), (3, 1, 4, 8)))
        return emit(of_rows(image, kernel, padding=(1, 1, 1, 1)))

    x = ((1, 9, 9, 8), "uint8")
    assert_same(PASS(relax_main(before, x=x)), relax_main(after, x=x))


@pytest.mark.parametrize("cpu", ["sapphirerapids", "haswell"])
def test_other_targets(relax_main, cpu: str) -> None:
    """With AMX, dot products of bfloat16 are not used; Haswell has none."""
    w = weight(3, 3, 1, 8, dtype="bfloat16")
    mod = relax_main(lambda emit, x: emit(conv(x, relax.const(w))), x=((1, 9, 9, 1), "bfloat16"))
    folding = FoldColumns(resolve_target(cpu, 2).to_tvm())
    tvm.ir.assert_structural_equal(folding(mod), mod)


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_integers_are_exact(relax_main, tmp_path, data) -> None:
    def size(low, high):
        return data.draw(st.integers(low, high))

    channels, outputs = size(1, 3), data.draw(st.sampled_from([1, 8, 16, 257]))
    kernel = (size(1, 4), size(1, 7))
    settings_ = {
        "strides": (size(1, 3), size(1, 3)),
        "padding": tuple(size(0, 2) for _ in range(4)),
        "dilation": (size(1, 2), 1),
    }
    shape = (size(1, 2), size(9, 14), size(9, 30), channels)
    w = weight(*kernel, channels, outputs)
    x = np.random.default_rng(2).integers(0, 256, shape).astype("uint8")
    mod = relax_main(lambda emit, x: emit(conv(x, relax.const(w), **settings_)), x=(shape, "uint8"))
    expected = numpy_conv2d(x.transpose(0, 3, 1, 2), w.transpose(3, 2, 0, 1), **settings_)
    target = resolve_target("host", 2)
    path = tmp_path / "library.so"
    build_library(lower(mod, target.to_tvm()), target, path)
    [got] = loaded(path)(x)
    np.testing.assert_array_equal(got, expected.transpose(0, 2, 3, 1))
