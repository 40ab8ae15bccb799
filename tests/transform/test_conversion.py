"""Every layout, dtype and skip set on random graphs: they compile, with right results."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from tvmopt.compare import (
    FLOAT_TOLERANCE,
    HALF_TOLERANCE,
    cosine,
    deviation,
    model_tolerance,
)
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.frontend.reference import Reference
from tvmopt.quantize import Scheme, collect_ranges, quantize_model
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.anchors import anchors
from tvmopt.transform.conversion import convert_module

TARGET = resolve_target("host", 1)
DTYPES = ("float32", "float16", "bfloat16", "int8")
TOLERANCES = {
    "float32": FLOAT_TOLERANCE,
    "float16": HALF_TOLERANCE,
    "bfloat16": model_tolerance("bfloat16"),
}
LAYOUTS = ("NCHW", "NHWC", "NCHW4c", "NCHW8c", "HWNC")


@dataclasses.dataclass
class Builder:
    """Draw a graph: a chain of blocks on (channels, height, width), then a head."""

    draw: object
    rng: np.random.Generator
    nodes: list = dataclasses.field(default_factory=list)
    constants: list = dataclasses.field(default_factory=list)

    def node(self, op, inputs, **attributes):
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [f"{name}.y"], name=name, **attributes))
        return f"{name}.y"

    def weight(self, *shape):
        fan_in = int(np.prod(shape[1:])) or 1
        array = (self.rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
        return self.constant(array)

    def constant(self, array):
        name = f"k{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def conv(self, value, shape):
        channels, height, width = shape
        out = self.draw(st.sampled_from([3, 4, 8, 16, 12]))
        groups = self.draw(st.sampled_from([1, 1, 1, channels, 2]))
        if groups == channels:
            out = channels
        if channels % groups or out % groups:
            groups = 1
        kernel = self.draw(st.sampled_from([1, 3]))
        stride = self.draw(st.sampled_from([1, 1, 2]))
        dilation = self.draw(st.sampled_from([1, 1, 2]))
        pad = self.draw(st.integers(0, 1)) * (kernel // 2) * dilation
        reach = dilation * (kernel - 1) + 1
        if min(height, width) + 2 * pad < reach:
            return value, shape
        inputs = [value, self.weight(out, channels // groups, kernel, kernel)]
        if self.draw(st.booleans()):
            inputs.append(self.constant(self.rng.standard_normal(out).astype(np.float32)))
        value = self.node(
            "Conv", inputs, group=groups, strides=[stride] * 2, dilations=[dilation] * 2,
            pads=[pad] * 4, kernel_shape=[kernel] * 2,
        )  # fmt: skip
        sizes = [(size + 2 * pad - reach) // stride + 1 for size in (height, width)]
        return value, (out, *sizes)

    def block(self, value, shape):
        channels, height, width = shape
        kind = self.draw(
            st.sampled_from(["conv", "conv", "relu", "clip", "residual", "concat", "maxpool",
                             "avgpool", "swish", "excite", "pad"])
        )  # fmt: skip
        if kind == "conv":
            return self.conv(value, shape)
        if kind == "relu":
            return self.node("Relu", [value]), shape
        if kind == "clip":
            bounds = [self.constant(np.float32(0)), self.constant(np.float32(6))]
            return self.node("Clip", [value, *bounds]), shape
        if kind == "residual":
            branch = self.node("Conv", [value, self.weight(channels, channels, 1, 1)])
            return self.node("Add", [branch, value]), shape
        if kind == "concat":
            branch = self.node("Conv", [value, self.weight(4, channels, 1, 1)])
            return self.node("Concat", [value, branch], axis=1), (channels + 4, height, width)
        if kind in ("maxpool", "avgpool") and min(height, width) >= 2:
            op = "MaxPool" if kind == "maxpool" else "AveragePool"
            value = self.node(op, [value], kernel_shape=[2, 2], strides=[2, 2])
            return value, (channels, height // 2, width // 2)
        if kind == "swish":
            return self.node("Mul", [value, self.node("Sigmoid", [value])]), shape
        if kind == "excite":
            pooled = self.node("GlobalAveragePool", [value])
            gate = self.node("Conv", [pooled, self.weight(channels, channels, 1, 1)])
            return self.node("Mul", [value, self.node("Sigmoid", [gate])]), shape
        if kind == "pad":
            pads = self.constant(np.array([0, 0, 1, 0, 0, 0, 0, 1], np.int64))
            return self.node("Pad", [value, pads]), (channels, height + 1, width + 1)
        return value, shape

    def head(self, value, shape):
        channels = shape[0]
        kind = self.draw(st.sampled_from(["map", "gemm", "matmul", "sequence"]))
        if kind == "map":
            return value
        if kind == "gemm":
            value = self.node("Flatten", [self.node("GlobalAveragePool", [value])])
            bias = self.constant(self.rng.standard_normal(5).astype(np.float32))
            return self.node("Gemm", [value, self.weight(5, channels), bias], transB=1)
        shape_of = self.constant(np.array([0, channels, -1], np.int64))
        rows = self.node("Transpose", [self.node("Reshape", [value, shape_of])], perm=[0, 2, 1])
        value = self.node("MatMul", [rows, self.weight(channels, 6)])
        if kind == "sequence":
            scores = self.node("MatMul", [value, self.node("Transpose", [value], perm=[0, 2, 1])])
            return self.node("MatMul", [self.node("Softmax", [scores], axis=-1), value])
        return value


@st.composite
def models(draw):
    """Draw an ONNX model with at least one layer and static shapes."""
    builder = Builder(draw, np.random.default_rng(draw(st.integers(0, 2**16))))
    batch = draw(st.sampled_from([1, 1, 2]))
    shape = (draw(st.sampled_from([1, 3, 4, 8])), *draw(st.tuples(*[st.integers(4, 9)] * 2)))
    value, current = "x", shape
    for _ in range(draw(st.integers(1, 5))):
        value, current = builder.block(value, current)
    value, current = builder.conv(value, current)
    value = builder.head(value, current)
    if value == "x":
        value = builder.node("Conv", ["x", builder.weight(4, shape[0], 1, 1)])
    graph = helper.make_graph(
        builder.nodes,
        "drawn",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [batch, *shape])],
        [helper.make_empty_tensor_value_info(value)],
        builder.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def _inputs(model, seed):
    dims = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": np.random.default_rng(seed).standard_normal(dims).astype(np.float32)}


def _output_step(model, output):
    """Return the scale of the first output; 1/255 of its range if it is not quantized."""
    (producer,) = (n for n in model.graph.node if model.graph.output[0].name in n.output)
    if producer.op_type == "DequantizeLinear":
        constants = {i.name: i for i in model.graph.initializer}
        return float(numpy_helper.to_array(constants[producer.input[1]]).max())
    return float(np.ptp(output)) / 255


def _without_fusion(model, inputs):
    """Return the outputs of ONNX Runtime without fusion of quantize and dequantize."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    providers = ["CPUExecutionProvider"]
    return ort.InferenceSession(model.SerializeToString(), options, providers).run(None, inputs)


def _check(model, dtype, layout, skip):
    prepared = prepare(model, {})
    layers = layer_table(prepared.model)
    skip = sorted({layers[i % len(layers)].index for i in skip}) if layers else []
    source = prepared.model
    if dtype == "int8":
        batches = [_inputs(model, seed) for seed in range(1, 6)]
        scheme = Scheme()
        ranges = collect_ranges(source, batches, scheme)
        source = quantize_model(source, ranges, scheme, [layers[i].name for i in skip])
    mod = import_onnx(source, layers)
    converted = convert_module(
        mod, dtype=dtype, layout=layout, skip_layers=skip[::2], keep_dtype=skip[1::2]
    )
    assert [a.index for a in anchors(converted.mod)] == [a.index for a in anchors(mod)]
    inputs = _inputs(model, 1)
    got = compile_for_check(converted.mod, TARGET)([inputs["x"]])
    expected = Reference(prepared.reference)(inputs)
    if dtype == "int8":
        pairs = zip(Reference(source)(inputs), _without_fusion(source, inputs), strict=True)
        for a, (fused, plain), real in zip(got, pairs, expected, strict=True):
            # Where ONNX Runtime's integer kernels round unlike its float ones (the mean of
            # four bytes), its two results differ, and ours may be near either.
            apart = np.abs(fused - plain).max()
            bound = 2.1 * _output_step(source, fused) + apart + 1e-4 * np.abs(fused).max() + 1e-6
            assert min(np.abs(a - exact).max() for exact in (fused, plain)) <= bound
            assert cosine(a, real) > 0.9
        return
    tolerance = TOLERANCES[dtype]
    for a, real in zip(got, expected, strict=True):
        assert a.dtype == real.dtype
        assert deviation(a, real) <= tolerance.limit


SLOW = settings(
    deadline=None,
    max_examples=5,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("dtype", DTYPES)
@SLOW
@given(models(), st.sampled_from(LAYOUTS), st.lists(st.integers(0, 9), max_size=2))
def test_drawn_graphs(dtype, model, layout, skip):
    _check(model, dtype, layout, skip)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@settings(SLOW, max_examples=25, derandomize=False)
@given(models(), st.lists(st.integers(0, 9), max_size=3))
def test_many_drawn_graphs(dtype, layout, model, skip):
    _check(model, dtype, layout, skip)


@pytest.mark.slow
def test_example_in_every_combination():
    """Convert the bundled model to each dtype and layout, with and without its first layer."""
    model = onnx.load(str(Path(__file__).parents[2] / "tvmopt/examples/digits_cnn.onnx"))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    for dtype in DTYPES:
        for layout in ("NHWC", "NCHW16c"):
            _check_digits(model, dtype, layout)


def _check_digits(model, dtype, layout):
    data = np.load(Path(__file__).parents[2] / "tvmopt/examples/digits_calibration.npz")["image"]
    prepared = prepare(model, {})
    layers = layer_table(prepared.model)
    source = prepared.model
    if dtype == "int8":
        batches = [{"image": data[i : i + 1]} for i in range(100)]
        ranges = collect_ranges(source, batches, Scheme())
        source = quantize_model(source, ranges, Scheme(), [layers[0].name])
    converted = convert_module(
        import_onnx(source, layers), dtype=dtype, layout=layout, skip_layers=[0]
    )
    run = compile_for_check(converted.mod, TARGET)
    reference = Reference(prepared.reference)
    for image in data[100:120]:
        [got], [want] = run([image[None]]), reference({"image": image[None]})
        assert cosine(got, want) > (0.99 if dtype == "int8" else 0.999)
