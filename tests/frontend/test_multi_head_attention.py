"""MultiHeadAttention of com.microsoft: results of ONNX Runtime, one function, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.attention.fuse import find_attention
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE
from tvmopt.transform.lower import lower
from tvmopt.transform.simplify import simplify

_PLAIN = {"q": (2, 5, 32), "k": (2, 7, 32), "v": (2, 7, 32)}
_ORDER = ("q", "k", "v", "bias", "padding", "added", "past_key", "past_value")


def _model(shapes: dict[str, tuple[int, ...]], outputs: int = 1, **attributes) -> onnx.ModelProto:
    names = [name if name in shapes else "" for name in _ORDER]
    while not names[-1]:
        names.pop()
    made = ["out", "present_key", "present_value", "scores"][:outputs]
    node = helper.make_node(
        "MultiHeadAttention", names, made, "mha", domain="com.microsoft", num_heads=4, **attributes
    )
    dtypes = {"padding": TensorProto.INT32}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), shape)
            for name, shape in shapes.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("further", "outputs", "attributes"),
    [
        ({}, 1, {}),
        ({"bias": (96,)}, 1, {"scale": 0.3}),
        ({"padding": (2, 7)}, 1, {}),
        ({"added": (1, 4, 5, 7)}, 1, {}),
        ({"q": (2, 7, 32)}, 1, {"unidirectional": 1}),
        ({"past_key": (2, 4, 3, 8), "past_value": (2, 4, 3, 8)}, 3, {}),
    ],
)
def test_results(further, outputs: int, attributes) -> None:
    model = prepare(_model({**_PLAIN, **further}, outputs, **attributes), {}).model
    rng = np.random.default_rng(0)
    feeds = {
        info.name: rng.standard_normal([d.dim_value for d in info.type.tensor_type.shape.dim])
        for info in model.graph.input
    }
    feeds = {
        name: (x > -0.5).astype("int32") if name == "padding" else x.astype("float32")
        for name, x in feeds.items()
    }
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    module = import_onnx(model, layer_table(model))
    assert len(find_attention(simplify(module)["main"])) == 1
    target = resolve_target("host", 1)
    scheduled, _ = schedule_module(lower(module, target.to_tvm()), target.arch())
    with tvm.transform.PassContext(opt_level=3):
        built = tvm.compile(scheduled, target.to_tvm(), tir_pipeline=CPU_PIPELINE)
    given = [tvm.runtime.tensor(feeds[info.name]) for info in model.graph.input]
    got = relax.VirtualMachine(built, tvm.cpu())["main"](*given)
    got = [got] if outputs == 1 else list(got)
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-5)


def test_packed_operands_are_refused() -> None:
    model = prepare(_model({"q": (2, 5, 4, 3, 8)}), {}).model
    with pytest.raises(UnsupportedOperatorError, match="must be separate tensors"):
        import_onnx(model, layer_table(model))
