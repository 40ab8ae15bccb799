"""1-D convolutions, and what lies between them, become operators on images."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tvm
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.frontend.importer import import_onnx
from tvmopt.transform.anchors import anchors
from tvmopt.transform.conv1d import conv1d_as_conv2d
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower

op, nn = relax.op, relax.op.nn
_X = ((1, 4, 20), "float32")


def _const(*shape: int) -> relax.Expr:
    return relax.const(np.random.default_rng(0).standard_normal(shape, np.float32))


W, TAP, BIAS = _const(6, 4, 3), _const(6, 1, 3), _const(1, 6, 1)


def _image(emit, x):
    return emit(op.expand_dims(x, [2]))


def _weight(emit, w):
    return emit(op.expand_dims(w, [2]))


def _conv(emit, x, w, **fields):
    return emit(nn.conv2d(x, _weight(emit, w), **fields))


def test_a_chain_stays_on_images(relax_main, assert_same) -> None:
    def before(emit, x):
        y = emit(nn.conv1d(x, W, strides=2, padding=(1, 2), dilation=2))
        y = emit(nn.relu(emit(op.add(y, BIAS))))
        z = emit(nn.conv1d(y, TAP, groups=6))
        return emit(op.sigmoid(z))

    def after(emit, x):
        y = _conv(
            emit, _image(emit, x), W, strides=(1, 2), padding=(0, 1, 0, 2), dilation=(1, 2),
            out_layout="NCHW",
        )  # fmt: skip
        y = emit(nn.relu(emit(op.add(y, _image(emit, BIAS)))))
        z = _conv(emit, y, TAP, groups=6, out_layout="NCHW")
        return emit(op.squeeze(emit(op.sigmoid(z)), [2]))

    got = conv1d_as_conv2d(relax_main(before, x=_X))
    assert_same(got, relax_main(after, x=_X))


def test_windows_pieces_and_slices(relax_main, assert_same) -> None:
    def before(emit, x):
        y = emit(nn.conv1d(x, W))
        y = emit(nn.max_pool1d(y, 3, strides=2, padding=1))
        y = emit(nn.avg_pool1d(y, 2, count_include_pad=True))
        y = emit(op.concat([y, y], axis=-1))
        y = emit(op.strided_slice(y, [2], [0], [-2]))
        y = emit(nn.pad(y, [0, 0, 0, 0, 4, 1]))
        return emit(nn.prelu(y, _const(6), axis=1))

    def after(emit, x):
        y = _conv(emit, _image(emit, x), W, out_layout="NCHW")
        y = emit(nn.max_pool2d(y, (1, 3), strides=(1, 2), padding=(0, 1, 0, 1)))
        y = emit(nn.avg_pool2d(y, (1, 2), count_include_pad=True))
        y = emit(op.concat([y, y], axis=3))
        y = emit(op.strided_slice(y, [3], [0], [-2]))
        y = emit(nn.pad(y, [0, 0, 0, 0, 0, 0, 4, 1]))
        y = emit(nn.prelu(y, _const(6), axis=1))
        return emit(op.squeeze(y, [2]))

    got = conv1d_as_conv2d(relax_main(before, x=_X))
    assert_same(got, relax_main(after, x=_X))


def test_other_operators_get_the_sequence(relax_main, assert_same) -> None:
    def before(emit, x):
        y = emit(nn.conv1d(x, W))
        z = emit(op.permute_dims(y, [0, 2, 1]))
        return emit(op.add(z, emit(op.mean(y, [1, 2], keepdims=True))))

    def after(emit, x):
        y = emit(op.squeeze(_conv(emit, _image(emit, x), W, out_layout="NCHW"), [2]))
        z = emit(op.permute_dims(y, [0, 2, 1]))
        return emit(op.add(z, emit(op.mean(y, [1, 2], keepdims=True))))

    got = conv1d_as_conv2d(relax_main(before, x=_X))
    assert_same(got, relax_main(after, x=_X))


def test_networks_without_1d_convolutions_do_not_change(relax_main) -> None:
    def body(emit, x):
        return emit(op.sigmoid(emit(nn.max_pool1d(x, 3))))

    mod = relax_main(body, x=_X)
    tvm.ir.assert_structural_equal(conv1d_as_conv2d(mod), mod)


class _Network:
    """A random network of 1-D layers as an ONNX graph.

    Args:
        seed: Seed of the weights, and of the choice of layers.
        layers: Number of layers.
    """

    def __init__(self, seed: int, layers: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.channels = int(self.rng.integers(1, 7))
        self.shape = (int(self.rng.integers(1, 3)), self.channels, int(self.rng.integers(40, 70)))
        kinds = (self.conv, self.conv, self.transposed, self.pool, self.gate, self.slice, self.add)
        y = self.conv("x")
        for _ in range(layers):
            y = kinds[self.rng.integers(len(kinds))](y)
        graph = helper.make_graph(
            self.nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)], self.constants,
        )  # fmt: skip
        opset = [helper.make_opsetid("", 17)]
        self.model = onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opset, ir_version=8)
        )

    def node(self, kind: str, inputs: list[str], outputs: int = 1, **fields: object) -> list[str]:
        names = [f"t{len(self.nodes)}_{k}" for k in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, **fields))
        return names

    def constant(self, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, f"c{len(self.constants)}"))
        return self.constants[-1].name

    def normal(self, *shape: int) -> str:
        array = self.rng.normal(0, 1 / np.sqrt(np.prod(shape[1:]) or 1), shape)
        return self.constant(array.astype("float32"))

    def conv(self, x: str) -> str:
        width, groups = int(self.rng.integers(1, 6)), 1
        outputs = int(self.rng.choice([1, 3, 4, 8]))
        if self.rng.random() < 0.3:
            groups = outputs = self.channels
        weight = self.normal(outputs, self.channels // groups, width)
        left, right = (int(p) for p in self.rng.integers(0, 3, 2))
        [y] = self.node(
            "Conv", [x, weight, self.normal(outputs)], group=groups, pads=[left, right],
            strides=[int(self.rng.integers(1, 3))], dilations=[int(self.rng.integers(1, 3))],
        )  # fmt: skip
        self.channels = outputs
        kind = self.rng.choice(["", "Relu", "Sigmoid", "PRelu", "Tanh"])
        if kind == "PRelu":
            slopes = (self.channels, 1) if self.rng.random() < 0.5 else (1, 1)
            slope = self.constant(self.rng.uniform(0.1, 0.5, slopes).astype("float32"))
            return self.node("PRelu", [y, slope])[0]
        return self.node(str(kind), [y])[0] if kind else y

    def transposed(self, x: str) -> str:
        stride = int(self.rng.integers(1, 5))
        width, outputs = stride + int(self.rng.integers(0, 5)), int(self.rng.choice([1, 4, 6]))
        left = int(self.rng.integers(0, width // 2 + 1))
        weight = self.normal(self.channels, outputs, width)
        self.channels = outputs
        fields = {"strides": [stride], "pads": [left, width // 2 - left]}
        return self.node("ConvTranspose", [x, weight, self.normal(outputs)], **fields)[0]

    def pool(self, x: str) -> str:
        kind = str(self.rng.choice(["MaxPool", "AveragePool"]))
        return self.node(kind, [x], kernel_shape=[3], strides=[1], pads=[1, 1])[0]

    def gate(self, x: str) -> str:
        weight = self.normal(2 * self.channels, self.channels, 1)
        [y] = self.node("Conv", [x, weight])
        value, logits = self.node("Split", [y], 2, axis=1)
        return self.node("Mul", [value, self.node("Sigmoid", [logits])[0]])[0]

    def slice(self, x: str) -> str:
        ends = [self.constant(np.array([v], "int64")) for v in (1, -1, 2)]
        return self.node("Slice", [x, *ends])[0]

    def add(self, x: str) -> str:
        weight = self.normal(self.channels, self.channels, 3)
        [y] = self.node("Conv", [x, weight], pads=[1, 1])
        return self.node("Concat", [self.node("Add", [x, y])[0], x], axis=2)[0]


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6), layers=st.integers(0, 4), layout=st.sampled_from(["NCHW", "NHWC"])
)
def test_random_networks_equal_onnx_runtime(seed: int, layers: int, layout: str) -> None:
    network = _Network(seed, layers)
    x = network.rng.standard_normal(network.shape, np.float32)
    expected = ort.InferenceSession(network.model.SerializeToString()).run(None, {"x": x})[0]
    converted = convert_module(import_onnx(network.model), layout=layout).mod
    assert all("1d" not in anchor.op for anchor in anchors(converted))
    got = _run(converted, x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("width", [8, 33])
def test_the_last_samples_of_a_transposed_convolution(width: int) -> None:
    """TVM's simplification of affine indices would lose a carry in the reshape of the result."""
    network = _Network(0, 0)
    network.nodes, network.constants = [], []
    weight, bias = network.normal(32, 4, 8), network.normal(4)
    [y] = network.node("ConvTranspose", ["x", weight, bias], strides=[4], pads=[2, 2])
    graph = helper.make_graph(
        network.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 32, width))],
        [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)], network.constants,
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    model = onnx.shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=opset, ir_version=8)
    )
    x = network.rng.standard_normal((1, 32, width), np.float32)
    expected = ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0]
    got = _run(convert_module(import_onnx(model), layout="NHWC").mod, x)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def _run(mod: tvm.IRModule, x: np.ndarray) -> np.ndarray:
    target = resolve_target("host", 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "library.so"
        build_library(lower(mod, target.to_tvm()), target, path)
        return loaded(path)(x)[0]
