"""Quantized lowering: the module before and after, one pattern per test."""

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm.relax import op

from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.integer import lower_quantized

RNG = np.random.default_rng(0)
X = {"x": ((1, 4, 8, 8), "uint8")}
WEIGHT = RNG.integers(-127, 128, (6, 4, 3, 3)).astype("int8")
SCALES = RNG.uniform(0.01, 0.05, 6).astype("float32")
BIAS = RNG.integers(-2000, 2000, 6).astype("int32")
SX, SY = np.float32(0.02), np.float32(0.1)


def f32(value):
    return relax.const(np.asarray(value, "float32"), "float32")


def dequantise(emit, x, scale, zero=0, dtype="uint8", axis=0):
    zeros = np.full(np.shape(scale), zero, dtype)
    return emit(op.dequantize(x, f32(scale), relax.const(zeros, dtype), axis=axis))


def quantise(emit, x, scale, zero=0, dtype="uint8"):
    return emit(op.quantize(x, f32(scale), relax.const(np.asarray(zero, dtype)), out_dtype=dtype))


def weights(emit, data=WEIGHT, scale=SCALES, axis=0):
    return dequantise(emit, relax.const(data), scale, 0, str(data.dtype), axis)


def bias(emit, data=BIAS, scale=SX * SCALES):
    return emit(op.reshape(dequantise(emit, relax.const(data), scale, 0, "int32"), (1, -1, 1, 1)))


def saturate(emit, steps, zero=0, low=0, high=255, dtype="uint8"):
    steps = emit(op.round(steps))
    if zero:
        steps = emit(op.add(steps, f32(zero)))
    return emit(op.astype(emit(op.clip(steps, low, high)), dtype))


def requantise(emit, acc, shift, scale, **kwargs):
    if shift is not None:
        acc = emit(op.add(acc, relax.const(shift)))
    steps = emit(op.multiply(emit(op.astype(acc, "float32")), f32(scale)))
    return saturate(emit, steps, **kwargs)


def channels(values):
    return np.asarray(values).reshape(1, -1, 1, 1)


def lowered(before, floats=None):
    result = lower_quantized(before)
    assert result.floats == (floats or {})
    return result.mod


def test_conv_bias_relu(relax_main, assert_same):
    def before(emit, x):
        y = emit(op.nn.conv2d(dequantise(emit, x, SX), weights(emit), padding=1))
        return quantise(emit, emit(op.nn.relu(emit(op.add(y, bias(emit))))), SY, 7)

    def after(emit, x):
        acc = emit(op.nn.conv2d(x, relax.const(WEIGHT), padding=1, out_dtype="int32"))
        return requantise(emit, acc, channels(BIAS), channels(SX * SCALES / SY), zero=7, low=7)

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_padding_uses_the_zero_point_which_is_folded_into_the_bias(relax_main, assert_same):
    def before(emit, x):
        y = emit(op.nn.conv2d(dequantise(emit, x, SX, 5), weights(emit), padding=1))
        return quantise(emit, emit(op.add(y, bias(emit))), SY)

    def after(emit, x):
        x = emit(op.nn.pad(x, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=5.0))
        acc = emit(op.nn.conv2d(x, relax.const(WEIGHT), out_dtype="int32"))
        shift = BIAS - 5 * WEIGHT.sum((1, 2, 3), dtype="int32")
        return requantise(emit, acc, channels(shift), channels(SX * SCALES / SY))

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_depthwise_and_clip(relax_main, assert_same):
    kernel, scale = WEIGHT[:4, :1], SCALES[:4]

    def before(emit, x):
        y = emit(op.nn.conv2d(dequantise(emit, x, SX), weights(emit, kernel, scale), groups=4))
        return quantise(emit, emit(op.clip(y, 0, 6)), SY)

    def after(emit, x):
        acc = emit(op.nn.conv2d(x, relax.const(kernel), groups=4, out_dtype="int32"))
        return requantise(emit, acc, None, channels(SX * scale / SY), high=60)

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_clip_as_the_importer_writes_it_bounds_the_integers():
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "uint8"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = dequantise(builder.emit, x, SX, 100)
            y = builder.emit_te(tvm.topi.maximum, y, f32(0))
            y = builder.emit_te(tvm.topi.minimum, y, f32(1))
            y = builder.emit_output(quantise(builder.emit, y, SX, 100))
        builder.emit_func_output(y)
    main = lower_quantized(builder.get()).mod["main"]
    calls = [b.value for b in main.body.blocks[0].bindings if isinstance(b.value, relax.Call)]
    assert [c.op.name for c in calls] == ["relax.clip"]
    assert [int(a.value) for a in calls[0].args[1:]] == [100, 150]


def test_residual_add_is_one_kernel_of_two_operands(relax_main, assert_same):
    inputs = {"x": ((1, 4), "uint8"), "y": ((1, 4), "uint8")}

    def before(emit, x, y):
        total = emit(op.add(dequantise(emit, x, SX, 3), dequantise(emit, y, SY)))
        return quantise(emit, emit(op.nn.relu(total)), SY)

    def after(emit, x, y):
        ratio = SX / SY
        left = emit(op.astype(y, "float32"))
        right = emit(op.multiply(emit(op.astype(x, "float32")), f32(ratio)))
        total = emit(op.add(emit(op.add(left, right)), f32(-ratio * np.float32(3))))
        return saturate(emit, total)

    assert_same(lowered(relax_main(before, **inputs)), relax_main(after, **inputs))


def test_matmul_by_columns(relax_main, assert_same):
    weight = RNG.integers(-127, 128, (8, 5)).astype("int8")
    scale, offset = SCALES[:5], RNG.integers(-99, 99, 5).astype("int32")
    inputs = {"x": ((3, 8), "int8")}

    def before(emit, x):
        y = emit(op.matmul(dequantise(emit, x, SX, -7, "int8"), weights(emit, weight, scale, 1)))
        y = emit(op.add(y, dequantise(emit, relax.const(offset), SX * scale, 0, "int32")))
        return quantise(emit, y, SY, -4, "int8")

    def after(emit, x):
        acc = emit(op.matmul(x, relax.const(weight), out_dtype="int32"))
        shift = (offset + 7 * weight.sum(0, dtype="int32"))[None]
        limits = {"low": -128, "high": 127, "dtype": "int8", "zero": -4}
        return requantise(emit, acc, shift, (SX * scale / SY)[None], **limits)

    assert_same(lowered(relax_main(before, **inputs)), relax_main(after, **inputs))


def test_matmul_of_activations_corrects_zero_points_by_row_and_column_sums(relax_main, assert_same):
    inputs = {"a": ((2, 3, 8), "uint8"), "b": ((2, 8, 5), "uint8")}

    def before(emit, a, b):
        y = emit(op.matmul(dequantise(emit, a, SX, 3), dequantise(emit, b, SY, 4)))
        return quantise(emit, y, SY)

    def after(emit, a, b):
        acc = emit(op.matmul(a, b, out_dtype="int32"))
        rows = emit(op.sum(emit(op.astype(a, "int32")), [-1], keepdims=True))
        acc = emit(op.subtract(acc, emit(op.multiply(rows, relax.const(4, "int32")))))
        columns = emit(op.sum(emit(op.astype(b, "int32")), [-2], keepdims=True))
        acc = emit(op.subtract(acc, emit(op.multiply(columns, relax.const(3, "int32")))))
        return requantise(emit, acc, np.int32(8 * 3 * 4), SX * SY / SY)

    assert_same(lowered(relax_main(before, **inputs)), relax_main(after, **inputs))


def test_concat_requantises_each_part_to_the_result(relax_main, assert_same):
    inputs = {"x": ((1, 4), "uint8"), "y": ((1, 3), "uint8")}

    def before(emit, x, y):
        parts = [dequantise(emit, x, SX), dequantise(emit, y, SY, 9)]
        return quantise(emit, emit(op.concat(parts, 1)), SY, 9)

    def after(emit, x, y):
        left = emit(op.multiply(emit(op.astype(x, "float32")), f32(SX / SY)))
        return emit(op.concat([saturate(emit, left, zero=9), y], 1))

    assert_same(lowered(relax_main(before, **inputs)), relax_main(after, **inputs))


def test_movement_keeps_the_integers(relax_main, assert_same):
    def before(emit, x):
        y = dequantise(emit, x, SX, 5)
        y = emit(op.nn.max_pool2d(y, (2, 2), (2, 2)))
        y = emit(op.nn.pad(y, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=0.0))
        y = emit(op.reshape(emit(op.permute_dims(y, [0, 2, 3, 1])), (1, -1)))
        return quantise(emit, y, SX, 5)

    def after(emit, x):
        y = emit(op.nn.max_pool2d(x, (2, 2), (2, 2)))
        y = emit(op.nn.pad(y, [0, 0, 0, 0, 1, 1, 1, 1], pad_value=5.0))
        return emit(op.reshape(emit(op.permute_dims(y, [0, 2, 3, 1])), (1, -1)))

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_an_accumulator_is_quantised_before_data_movement(relax_main, assert_same):
    def before(emit, x):
        y = emit(op.nn.conv2d(dequantise(emit, x, SX), weights(emit)))
        return quantise(emit, emit(op.permute_dims(y, [0, 2, 3, 1])), SY)

    def after(emit, x):
        acc = emit(op.nn.conv2d(x, relax.const(WEIGHT), out_dtype="int32"))
        y = requantise(emit, acc, None, channels(SX * SCALES / SY))
        return emit(op.permute_dims(y, [0, 2, 3, 1]))

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_mean_accumulates_integers(relax_main, assert_same):
    def before(emit, x):
        y = emit(op.mean(dequantise(emit, x, SX, 5), [2, 3], keepdims=True))
        return quantise(emit, y, SY)

    def after(emit, x):
        acc = emit(op.sum(emit(op.astype(x, "int32")), [2, 3], keepdims=True))
        scale = np.float32(SX / np.float32(64)) / SY
        return requantise(emit, acc, np.int32(-5 * 64), scale)

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_a_float_operator_gets_floats_and_each_user_its_own(relax_main, assert_same):
    def before(emit, x):
        y = dequantise(emit, x, SX)
        gate = quantise(emit, emit(op.sigmoid(y)), SX)
        return quantise(emit, emit(op.multiply(y, dequantise(emit, gate, SX))), SY)

    def real(emit, x):
        return emit(op.multiply(emit(op.astype(x, "float32")), f32(SX)))

    def after(emit, x):
        gate = emit(op.multiply(emit(op.sigmoid(real(emit, x))), f32(1 / np.float64(SX))))
        gate = saturate(emit, gate)
        product = emit(op.multiply(real(emit, x), real(emit, gate)))
        return saturate(emit, emit(op.multiply(product, f32(1 / np.float64(SY)))))

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_a_bias_of_another_scale_stays_float(relax_main, assert_same):
    values = RNG.normal(size=6).astype("float32")

    def before(emit, x):
        y = emit(op.nn.conv2d(dequantise(emit, x, SX), weights(emit)))
        return quantise(emit, emit(op.add(y, f32(channels(values)))), SY)

    def after(emit, x):
        acc = emit(op.nn.conv2d(x, relax.const(WEIGHT), out_dtype="int32"))
        steps = emit(op.astype(acc, "float32"))
        steps = emit(op.multiply(steps, f32(channels(SX * SCALES / SY))))
        return saturate(emit, emit(op.add(steps, f32(channels(values / SY)))))

    assert_same(lowered(relax_main(before, **X)), relax_main(after, **X))


def test_without_quantisation_nothing_changes(relax_main):
    mod = relax_main(lambda emit, x: emit(op.nn.relu(x)), x=((2, 2), "float32"))
    result = lower_quantized(mod)
    tvm.ir.assert_structural_equal(result.mod, mod, map_free_vars=True)
    assert result.floats == {}


REASONS = [
    ("the model is not quantised", lambda emit, x: (emit(op.astype(x, "float32")), f32(WEIGHT))),
    ("weights are not quantised", lambda emit, x: (dequantise(emit, x, SX), f32(WEIGHT))),
    ("input is not quantised", lambda emit, x: (emit(op.astype(x, "float32")), weights(emit))),
    (
        "input is quantised per channel",
        lambda emit, x: (dequantise(emit, x, SCALES[:4], 0, "uint8", 1), weights(emit)),
    ),
    (
        "weights are not quantised per output channel",
        lambda emit, x: (
            dequantise(emit, x, SX),
            dequantise(emit, relax.const(WEIGHT), SCALES[:4], 0, "int8", 1),
        ),
    ),
    (
        "weights are int16",
        lambda emit, x: (dequantise(emit, x, SX), weights(emit, WEIGHT.astype("int16"))),
    ),
]


@pytest.mark.parametrize(("reason", "operands"), REASONS, ids=[r for r, _ in REASONS])
def test_what_stays_float_says_why(relax_main, reason, operands):
    mod = relax_main(lambda emit, x: emit(op.nn.conv2d(*operands(emit, x))), **X)
    result = lower_quantized(with_layers(mod, ["stem"], [3]))
    assert result.floats == {3: reason}
    (anchor,) = anchors(result.mod)
    assert (anchor.index, anchor.name) == (3, "stem")
    assert str(anchor.call.ty.dtype) == "float32"


def test_a_simplified_module_has_lost_its_weights(relax_main):
    from tvmopt.transform.simplify import simplify

    def before(emit, x):
        return emit(op.nn.conv2d(dequantise(emit, x, SX), weights(emit)))

    result = lower_quantized(simplify(relax_main(before, **X)))
    assert result.floats == {0: "weights are not quantised"}
