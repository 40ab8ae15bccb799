"""Build small QDQ models, in which every layer has its own inputs and a quantized output."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvmopt.frontend import import_onnx
from tvmopt.transform.integer import IntegerResult, lower_quantized
from tvmopt.transform.lower import lower_passes

_CPU = {"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}
TARGET = tvm.target.Target(_CPU)
_QUICK = tvm.target.Target({**_CPU, "opt-level": 0})
# Two u8 x s8 products of this range fit in 16 bits, which ONNX Runtime saturates without VNNI.
LARGEST_WEIGHT = 64


@dataclasses.dataclass
class QdqModel:
    """Build a model node by node; ``rng`` draws data, scales and zero points."""

    rng: np.random.Generator
    activation: str = "uint8"
    weight: str = "int8"
    opset: int = 17

    def __post_init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._results: list[tuple[str, str, str]] = []  # a tensor with its scale and zero point
        self.feeds: dict[str, np.ndarray] = {}

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node; return the name of its output."""
        name = f"{op}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, value: Any, dtype: str) -> str:
        """Add an initializer; return its name."""
        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def zero_point(self, dtype: str, symmetric: bool = False) -> int:
        """Draw a zero point: often an end of the range, as after a relu, or the middle."""
        info = np.iinfo(dtype)
        middle = (int(info.min) + int(info.max) + 1) // 2
        if symmetric:
            return middle
        return int(self.rng.choice([info.min, middle, self.rng.integers(info.min, info.max)]))

    def activations(self, *shape: int) -> tuple[str, float]:
        """Add a quantized input; return it dequantized, and its scale."""
        name, dtype = f"x{len(self._inputs)}", self.activation
        info, scale = np.iinfo(dtype), float(np.float32(self.rng.uniform(0.005, 0.05)))
        self._inputs.append(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)),
                                          shape)
        )  # fmt: skip
        self.feeds[name] = self.rng.integers(info.min, info.max + 1, shape).astype(dtype)
        return self.dequantised(name, scale, self.zero_point(dtype), dtype), scale

    def dequantised(
        self, name: str, scale: Any, zero: Any, dtype: str, axis: int | None = None
    ) -> str:
        """Append a DequantizeLinear; return its output."""
        inputs = [name, self.constant(scale, "float32"), self.constant(zero, dtype)]
        return self.node("DequantizeLinear", inputs, **({} if axis is None else {"axis": axis}))

    def weights(self, *shape: int, axis: int | None) -> tuple[str, np.ndarray]:
        """Add weights with one scale, or one per index of ``axis``; return them and the scales."""
        count = 1 if axis is None else shape[axis]
        scale = self.rng.uniform(0.002, 0.02, count).astype("float32")
        zero = np.full(count, self.zero_point(self.weight, symmetric=self.weight == "int8"))
        low = -LARGEST_WEIGHT if self.weight == "int8" else 0
        high = LARGEST_WEIGHT if self.weight == "int8" else 255
        data = self.constant(self.rng.integers(low, high + 1, shape), self.weight)
        if axis is None:
            return self.dequantised(data, scale[0], zero[0], self.weight), scale
        return self.dequantised(data, scale, zero, self.weight, axis), scale

    def bias(self, scale: np.ndarray) -> str:
        """Add an int32 bias with ``scale``; return it dequantized."""
        values = self.constant(self.rng.integers(-3000, 3000, scale.shape), "int32")
        return self.dequantised(values, scale, np.zeros_like(scale), "int32", 0)

    def result(self, name: str, scale: float | None = None, zero: int | None = None) -> str:
        """Quantize a result and make it an output; return it dequantized.

        Without ``scale``, :meth:`build` sets one that fits the values. It moves the zero point to
        the middle if the drawn one would saturate half of the values.
        """
        zero_point = self.constant(
            self.zero_point(self.activation) if zero is None else zero, self.activation
        )
        step = self.constant(1 if scale is None else scale, "float32")
        if scale is None:
            self._results.append((name, step, zero_point))
        parameters = [step, zero_point]
        quantised = self.node("QuantizeLinear", [name, *parameters])
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.activation))
        self._outputs.append(helper.make_tensor_value_info(quantised, kind, None))
        return self.node("DequantizeLinear", [quantised, *parameters])

    def real_output(self, name: str) -> None:
        """Make a float32 tensor an output."""
        self._outputs.append(_float(name))

    def build(self) -> onnx.ModelProto:
        """Return the model with inferred shapes, and output scales that use most of the range."""
        limits = np.iinfo(self.activation)
        middle = self.zero_point(self.activation, symmetric=True)
        constants = {constant.name: constant for constant in self._constants}
        for name, step, zero in self._results:
            (value,) = onnxruntime_outputs(self._model([_float(name)]), self.feeds)
            largest = max(float(np.abs(value).max(initial=0)), 1e-3)
            scale = largest / (0.4 * (limits.max - limits.min))
            constants[step].CopyFrom(numpy_helper.from_array(np.float32(scale), step))
            drawn = int(numpy_helper.to_array(constants[zero]))
            inside = (value / scale >= limits.min - drawn) & (value / scale <= limits.max - drawn)
            if inside.mean() < 0.5:
                moved = np.asarray(middle, self.activation)
                constants[zero].CopyFrom(numpy_helper.from_array(moved, zero))
        return onnx.shape_inference.infer_shapes(self._model(self._outputs), check_type=True)

    def _model(self, outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, "qdq", self._inputs, outputs, self._constants)
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _float(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)


def onnxruntime_outputs(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of ONNX Runtime with its default optimisations."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, feeds)


def lowered(mod: tvm.IRModule) -> tvm.IRModule:
    """Lower a module to fused TensorIR functions."""
    with TARGET, tvm.transform.PassContext(opt_level=3):
        return tvm.transform.Sequential(lower_passes())(mod)


def integer_outputs(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray]
) -> tuple[IntegerResult, list[np.ndarray]]:
    """Return the outputs of the integer module."""
    result = lower_quantized(import_onnx(model))
    machine = relax.VirtualMachine(tvm.compile(lowered(result.mod), _QUICK), tvm.cpu())
    names = [i.name for i in model.graph.input]
    out = machine["main"](*(tvm.runtime.tensor(feeds[n]) for n in names))
    outputs = [out] if isinstance(out, tvm.runtime.Tensor) else list(out)
    return result, [o.numpy() for o in outputs]


def assert_within_one_step(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> IntegerResult:
    """Assert that outputs equal ONNX Runtime's, to one quantization step or to float32 accuracy.

    Most quantized outputs must vary, because a saturated output would equal anything.
    """
    result, got = integer_outputs(model, feeds)
    want = onnxruntime_outputs(model, feeds)
    varied: list[bool] = []
    for output, ours, theirs in zip(model.graph.output, got, want, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape), output.name
        if ours.dtype == np.float32:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
            continue
        varied.append(len(np.unique(theirs)) >= min(8, theirs.size / 2))
        steps = np.abs(ours.astype(int) - theirs.astype(int))
        assert steps.max(initial=0) <= 1, f"{output.name}: {steps.max()} steps"
    assert sum(varied) >= len(varied) / 2
    return result
