"""The integer module equals ONNX Runtime on the same QDQ model, to one quantization step."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tvm import relax

from .qdq import QdqModel, assert_within_one_step, integer_outputs, lowered

KINDS = [("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")]
Layer = Callable[[QdqModel], str]


def conv(m: QdqModel) -> str:
    groups = int(m.rng.choice([1, 1, 2]))
    channels, out = groups * int(m.rng.integers(1, 4)), groups * int(m.rng.integers(1, 4))
    kernel, stride = m.rng.integers(1, 4, 2).tolist(), m.rng.integers(1, 3, 2).tolist()
    pads, dilation = m.rng.integers(0, 3, 4).tolist(), m.rng.integers(1, 3, 2).tolist()
    x, sx = m.activations(1, channels, *m.rng.integers(6, 11, 2).tolist())
    axis = 0 if m.rng.random() < 0.7 else None
    w, sw = m.weights(out, channels // groups, *kernel, axis=axis)
    b = m.bias(np.broadcast_to(np.float32(sx) * sw, (out,)).astype("float32"))
    y = m.node(
        "Conv", [x, w, b][: int(m.rng.integers(2, 4))], kernel_shape=kernel, strides=stride,
        pads=pads, dilations=dilation, group=groups,
    )  # fmt: skip
    return activation(m, y)


def depthwise(m: QdqModel) -> str:
    channels = int(m.rng.integers(2, 6))
    x, _ = m.activations(1, channels, 7, 7)
    w, _ = m.weights(channels, 1, 3, 3, axis=0)
    return activation(m, m.node("Conv", [x, w], group=channels, pads=[1, 1, 1, 1]))


def scaled_channels(m: QdqModel) -> str:
    """Return an activation times one factor for each channel, as channel scales make it."""
    channels = int(m.rng.integers(2, 6))
    x, _ = m.activations(1, channels, 7, 7)
    w, _ = m.weights(channels, channels, 1, 1, axis=0)
    y = activation(m, m.node("Conv", [x, w]))
    return m.node("Mul", [y, m.constant(m.rng.uniform(0.1, 9, (1, channels, 1, 1)), "float32")])


def conv1d(m: QdqModel) -> str:
    x, _ = m.activations(1, 3, 12)
    w, _ = m.weights(4, 3, 3, axis=0)
    return m.node("Conv", [x, w], pads=[1, 2], dilations=[2])


def transposed(m: QdqModel) -> str:
    groups = int(m.rng.integers(1, 3))
    x, _ = m.activations(1, 2 * groups, 4, 5)
    w, _ = m.weights(2 * groups, 3, 3, 2, axis=None if groups > 1 else 1)
    return m.node("ConvTranspose", [x, w], strides=[2, 1], pads=[1, 0, 0, 1], group=groups)


def activation(m: QdqModel, y: str) -> str:
    kind = m.rng.choice(["none", "relu", "clip", "leaky"])
    if kind == "relu":
        return m.node("Relu", [y])
    if kind == "clip":
        return m.node("Clip", [y, m.constant(-0.5, "float32"), m.constant(6, "float32")])
    return m.node("LeakyRelu", [y], alpha=0.1) if kind == "leaky" else y


def matmul(m: QdqModel) -> str:
    rows, depth, columns = m.rng.integers(1, 9, 3).tolist()
    batch = [2] if m.rng.random() < 0.5 else []
    x, sx = m.activations(*batch, rows, depth)
    w, sw = m.weights(depth, columns, axis=1 if m.rng.random() < 0.7 else None)
    y = m.node("MatMul", [x, w])
    if m.rng.random() < 0.5:
        scale = np.broadcast_to(np.float32(sx) * sw, (columns,)).astype("float32")
        y = m.node("Add", [y, m.bias(scale)])
    return y


def gemm(m: QdqModel) -> str:
    x, sx = m.activations(3, 8)
    w, sw = m.weights(5, 8, axis=0)
    return m.node("Gemm", [x, w, m.bias(np.float32(sx) * sw)], transB=1)


def attention(m: QdqModel) -> str:
    a, _ = m.activations(2, 4, 6)
    b, _ = m.activations(2, 6, 3)
    return m.node("MatMul", [a, b])


def add(m: QdqModel) -> str:
    a, _ = m.activations(1, 3, 4, 4)
    b, _ = m.activations(1, 3, *m.rng.choice([[4, 4], [1, 1]]).tolist())
    return activation(m, m.node(str(m.rng.choice(["Add", "Sub", "Mul"])), [a, b]))


def constants(m: QdqModel) -> str:
    x, _ = m.activations(1, 3, 4, 4)
    factor = m.constant(m.rng.uniform(-2, 2, (3, 1, 1)), "float32")
    y = m.node(str(m.rng.choice(["Mul", "Div"])), [x, factor])
    return m.node("Add", [m.constant(m.rng.uniform(-1, 1, (3, 1, 1)), "float32"), y])


def concat(m: QdqModel) -> str:
    parts = [m.activations(1, int(m.rng.integers(1, 4)), 3)[0] for _ in range(3)]
    return m.node("Concat", parts, axis=1)


def max_pool(m: QdqModel) -> str:
    x, _ = m.activations(1, 2, 9, 8)
    ceil = int(m.rng.integers(0, 2))
    return m.node("MaxPool", [x], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1],
                  ceil_mode=ceil)  # fmt: skip


def average_pool(m: QdqModel) -> str:
    x, _ = m.activations(1, 2, 9, 8)
    inside = int(m.rng.integers(0, 2))
    return m.node("AveragePool", [x], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1],
                  count_include_pad=inside)  # fmt: skip


def mean(m: QdqModel) -> str:
    x, _ = m.activations(2, 3, 5, 7)
    if m.rng.random() < 0.5:
        return m.node("GlobalAveragePool", [x])
    return m.node("ReduceMean", [x], axes=[1, 3], keepdims=int(m.rng.integers(0, 2)))


def movement(m: QdqModel) -> str:
    x, _ = m.activations(1, 4, 3, 2)
    y = m.node("Transpose", [x], perm=[0, 2, 3, 1])
    y = m.node("Reshape", [y, m.constant([3, 8], "int64")])
    starts, ends = m.constant([1], "int64"), m.constant([7], "int64")
    y = m.node("Slice", [y, starts, ends, m.constant([1], "int64")])
    return m.node("Pad", [y, m.constant([0, 1, 1, 0], "int64")])


def gather(m: QdqModel) -> str:
    w, _ = m.weights(6, 4, axis=None)
    rows = m.constant([[3, 0], [5, 5]], "int64")
    x, _ = m.activations(2, 2, 4)
    return m.node("Add", [m.node("Gather", [w, rows]), x])


def gated(m: QdqModel) -> str:
    x, _ = m.activations(1, 4, 5, 5)
    gate = m.result(m.node("HardSigmoid", [m.node("GlobalAveragePool", [x])]), 1 / 255, 0)
    return m.node("Mul", [x, m.node("Sigmoid", [gate])])


LAYERS = (
    conv, depthwise, conv1d, transposed, matmul, gemm, attention, add, constants, concat, max_pool,
    average_pool, mean, movement, gather, gated, *[scaled_channels] * 6,
)  # fmt: skip


def _model(seed: int, kind: tuple[str, str], layers: list[Layer]) -> QdqModel:
    model = QdqModel(np.random.default_rng(seed), *kind)
    for layer in layers:
        model.result(layer(model))
    return model


@settings(
    max_examples=3, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(KINDS),
    st.lists(st.sampled_from((conv, conv, conv, matmul, add)), min_size=5, max_size=5),
)
def test_random_layers(seed: int, kind: tuple[str, str], layers: list[Layer]) -> None:
    model = _model(seed, kind, layers)
    assert assert_within_one_step(model.build(), model.feeds).floats == {}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", KINDS, ids=["u8s8", "s8s8", "u8u8"])
def test_every_kind_of_layer(kind: tuple[str, str]) -> None:
    model = _model(1, kind, list(LAYERS))
    assert assert_within_one_step(model.build(), model.feeds).floats == {}


def branch(m: QdqModel, x: str, sx: float) -> str:
    w, sw = m.weights(4, 4, 3, 3, axis=0)
    y = m.node("Conv", [x, w, m.bias(np.float32(sx) * sw)], pads=[1, 1, 1, 1])
    return m.result(m.node("Relu", [y]), zero=0)


def test_between_integer_convolutions_only_8_bit_tensors_are_stored() -> None:
    m = QdqModel(np.random.default_rng(3))
    x, sx = m.activations(1, 4, 8, 8)
    y = m.node("Relu", [m.node("Add", [branch(m, x, sx), branch(m, x, sx)])])
    y = m.result(m.node("GlobalAveragePool", [m.result(y, zero=0)]), zero=0)
    m.result(m.node("Conv", [y, m.weights(3, 4, 1, 1, axis=0)[0]]))
    model = m.build()
    result = assert_within_one_step(model, m.feeds)
    assert result.floats == {}
    assert "quantize(" not in result.mod.script()
    kernels = [b for b in lowered(result.mod)["main"].body.blocks[0].bindings
               if isinstance(b.value, relax.Call)]  # fmt: skip
    stored = {(str(b.var.ty.dtype), tuple(map(int, b.var.ty.shape))) for b in kernels}
    assert {shape for dtype, shape in stored if dtype != "uint8"} == {(1, 4, 1, 1)}  # accumulators
    assert ("uint8", (1, 4, 8, 8)) in stored


@pytest.mark.parametrize("opset", [10, 13, 19, 21])
def test_opsets(opset: int) -> None:
    m = QdqModel(np.random.default_rng(opset), opset=opset)
    x, _ = m.activations(1, 4, 8, 8)
    w, _ = m.weights(6, 4, 3, 3, axis=0 if opset >= 13 else None)
    m.result(m.node("Relu", [m.node("Conv", [x, w])]))
    if opset >= 21:
        m.activation = "uint16"
        m.result(m.node("Relu", [m.activations(2, 3)[0]]))
    assert assert_within_one_step(m.build(), m.feeds).floats == {}


def test_sixteen_bits_stay_float() -> None:
    m = QdqModel(np.random.default_rng(0), "uint16", opset=21)
    x, _ = m.activations(1, 4, 6, 6)
    m.result(m.node("Conv", [x, m.weights(3, 4, 3, 3, axis=0)[0]]))
    result, _ = integer_outputs(m.build(), m.feeds)
    assert result.floats == {0: "input is uint16"}
    assert_within_one_step(m.build(), m.feeds)


def test_a_branch_reads_floats() -> None:
    m = QdqModel(np.random.default_rng(5))
    x, _ = m.activations(1, 4, 6, 6)
    y = m.node("Conv", [x, m.weights(3, 4, 3, 3, axis=0)[0]])
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, [y], [name])], name, [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }  # fmt: skip
    condition = m.node("Greater", [m.node("ReduceMax", [x], keepdims=0), m.constant(0, "float32")])
    m.real_output(m.node("If", [condition], **branches))
    model = m.build()
    assert assert_within_one_step(model, m.feeds).floats == {}
