"""An encoder layer whose linear layers are MatMulNBits, beside ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.stages.check import compile_for_check
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower

HIDDEN, HEADS, LENGTH, BLOCK = 64, 4, 16, 32


class _Encoder:
    def __init__(self, bits: int, varied: bool) -> None:
        self.rng = np.random.default_rng(bits)
        self.bits, self.varied = bits, varied
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, value: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def add(self, op: str, inputs: list[str], name: str, **attributes: object) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def linear(self, name: str, x: str, depth: int, rows: int) -> str:
        blocks = depth // BLOCK
        shape = (rows, blocks, BLOCK * self.bits // 8)
        values = self.rng.integers(0, 256, shape, dtype=np.uint8)
        scales = self.rng.uniform(0.5, 1.0, (rows, blocks)) * 2.0 ** (-2 - self.bits)
        bias = self.rng.standard_normal(rows)
        zeros = self.rng.integers(0, 256, (rows, -(-blocks * self.bits // 8)), dtype=np.uint8)
        inputs = [
            x,
            self.constant(f"{name}.q", values),
            self.constant(f"{name}.s", scales.astype("float32")),
            self.constant(f"{name}.z", zeros) if self.varied else "",
            "",
            self.constant(f"{name}.b", bias.astype("float32")),
        ]
        return self.add(
            "MatMulNBits", inputs, name, domain="com.microsoft",
            K=depth, N=rows, bits=self.bits, block_size=BLOCK,
        )  # fmt: skip

    def norm(self, name: str, x: str) -> str:
        weight = self.constant(f"{name}.w", np.ones(HIDDEN, "float32"))
        return self.add("LayerNormalization", [x, weight], name, axis=-1)

    def model(self) -> onnx.ModelProto:
        split = self.constant("split", np.array([1, LENGTH, HEADS, HIDDEN // HEADS]))
        joined = self.constant("joined", np.array([1, LENGTH, HIDDEN]))
        factor = self.constant("factor", np.float32((HIDDEN // HEADS) ** -0.5))
        q, k, v = (
            self.add("Transpose", [self.add("Reshape", [self.linear(n, "x", HIDDEN, HIDDEN), split],
                     f"{n}.split")], f"{n}.heads", perm=perm)
            for n, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3]))
        )  # fmt: skip
        scores = self.add("Mul", [self.add("MatMul", [q, k], "qk"), factor], "scores")
        mixed = self.add("MatMul", [self.add("Softmax", [scores], "weights", axis=-1), v], "mixed")
        transposed = self.add("Transpose", [mixed], "transposed", perm=[0, 2, 1, 3])
        o = self.linear("o", self.add("Reshape", [transposed, joined], "attention"), HIDDEN, HIDDEN)
        x = self.norm("norm1", self.add("Add", ["x", o], "residual1"))
        up = self.add("Tanh", [self.linear("up", x, HIDDEN, 128)], "act")
        y = self.add("Add", [x, self.linear("down", up, 128, HIDDEN)], "residual2")
        self.add("Identity", [self.norm("norm2", y)], "y")
        shape = [1, LENGTH, HIDDEN]
        values = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy"]
        graph = helper.make_graph(self.nodes, "encoder", values[:1], values[1:], self.constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.sample(2)
@pytest.mark.parametrize("varied", [False, True], ids=["symmetric", "zero points"])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_cpu_computes_what_onnx_runtime_does(bits: int, varied: bool) -> None:
    model = _Encoder(bits, varied).model()
    x = np.random.default_rng(0).standard_normal((1, LENGTH, HIDDEN)).astype("float32")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    prepared = prepare(model, {})
    assert [layer.op for layer in layer_table(prepared.model)].count("MatMulNBits") == 6
    converted = convert_module(import_onnx(prepared.model))
    (got,) = compile_for_check(converted.mod, resolve_target("host", 1))([x])
    np.testing.assert_allclose(got, session.run(None, {"x": x})[0], rtol=1e-3, atol=1e-3)


def test_many_rows_are_dense_gemms_on_a_gpu() -> None:
    converted = convert_module(import_onnx(prepare(_Encoder(4, False).model(), {}).model))
    text = lower(converted.mod, resolve_target("nvidia-h200").to_tvm()).script()
    assert "packed_weight" not in text and "matmul_int4" not in text
