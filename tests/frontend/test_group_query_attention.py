"""GroupQueryAttention of com.microsoft: results of ONNX Runtime, one function, refusals."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.errors import UnsupportedOperatorError
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.kernels.attention import MaskedBy
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.transform.attention.fuse import find_attention
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE
from tvmopt.transform.lower import lower
from tvmopt.transform.simplify import simplify

_HEADS, _KV_HEADS, _SIZE = 4, 2, 16
_ORDER = (
    "q", "k", "v", "past_key", "past_value", "lengths", "total", "cos", "sin", "positions", "bias",
)  # fmt: skip


def _model(batch: int, queries: int, past: int, total: int, **given) -> onnx.ModelProto:
    """A node with the constant ``total``; ``given`` are attributes, and shapes of more inputs."""
    more = {name: given.pop(name) for name in _ORDER if name in given}
    kept = (batch, _KV_HEADS, past, _SIZE)
    shapes = {
        "q": (batch, queries, _HEADS * _SIZE),
        "k": (batch, queries, _KV_HEADS * _SIZE),
        "v": (batch, queries, _KV_HEADS * _SIZE),
        **({"past_key": kept, "past_value": kept} if past else {}),
        "lengths": (batch,),
        **more,
    }
    names = [name if name in (*shapes, "total") else "" for name in _ORDER]
    while not names[-1]:
        names.pop()
    made = ["out", "present_key", "present_value"]
    node = helper.make_node(
        "GroupQueryAttention", names, made, "gqa", domain="com.microsoft",
        num_heads=_HEADS, kv_num_heads=_KV_HEADS, **given,
    )  # fmt: skip
    dtypes = {"lengths": TensorProto.INT32}
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(name, dtypes.get(name, TensorProto.FLOAT), shape)
            for name, shape in shapes.items()
            if shape is not None
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made],
        [numpy_helper.from_array(np.array(total, "int32"), "total")],
    )
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=9)


def _feeds(model: onnx.ModelProto, lengths: list[int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        info.name: np.array(lengths, "int32")
        if info.name == "lengths"
        else rng.standard_normal(
            [d.dim_value for d in info.type.tensor_type.shape.dim], dtype="float32"
        )
        for info in model.graph.input
    }


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("sizes", "lengths", "given", "causal"),
    [
        ((1, 5, 0, 5), [4], {}, MaskedBy.FIRST_KEY),
        ((2, 5, 0, 5), [4, 2], {"scale": 0.3}, MaskedBy.FIRST_KEY),  # padded on the right
        ((1, 5, 8, 5), [3], {}, MaskedBy.FIRST_KEY),  # into a cache with room
        ((1, 1, 7, 8), [7], {}, MaskedBy.NOTHING),
        ((1, 1, 9, 6), [2], {}, MaskedBy.NOTHING),
        ((3, 1, 9, 6), [5, 2, 0], {}, MaskedBy.NOTHING),
        ((1, 3, 7, 10), [9], {}, MaskedBy.NOTHING),
        ((1, 3, 9, 7), [4], {}, MaskedBy.NOTHING),
        ((1, 1, 4, 5), [4], {"bias": (1, _HEADS, 1, 5)}, None),  # two masks that are computed
    ],
)
def test_results(sizes, lengths, given, causal) -> None:
    model = prepare(_model(*sizes, **given), {}).model
    feeds = _feeds(model, lengths)
    options = ort.SessionOptions()
    options.log_severity_level = 3  # it infers the shape of the past for the present
    data = model.SerializeToString()
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    wanted = session.run(None, feeds)
    module = import_onnx(model, layer_table(model))
    found = [call.problem for call in find_attention(simplify(module)["main"]).values()]
    if causal is None:
        assert not found
    else:
        [problem] = found
        assert (problem.kv_heads, problem.keys) == (_KV_HEADS, sizes[3])
        assert problem.causal is causal and problem.mask_dtype == "bool"
    target = resolve_target("host", 1)
    scheduled, _ = schedule_module(lower(module, target.to_tvm()), target.arch())
    with tvm.transform.PassContext(opt_level=3):
        built = tvm.compile(scheduled, target.to_tvm(), tir_pipeline=CPU_PIPELINE)
    inputs = [tvm.runtime.tensor(feeds[info.name]) for info in model.graph.input]
    got = list(relax.VirtualMachine(built, tvm.cpu())["main"](*inputs))
    for ours, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("sizes", "given", "reason"),
    [
        ((1, 1, 7, 8), {"local_window_size": 4}, "local_window_size must be -1, not 4"),
        ((1, 1, 7, 8), {"softcap": 2.0}, "softcap must be 0.0, not 2.0"),
        ((1, 1, 7, 9), {}, "a past of 7 keys must hold 8"),
        ((2, 3, 7, 10), {}, "must be a batch of one"),
        ((1, 4, 0, 3), {}, "must be 4 at least, not 3"),
        (
            (1, 1, 7, 8),
            {"q": (1, 1, (_HEADS + 2 * _KV_HEADS) * _SIZE), "k": None, "v": None},
            "must be separate tensors",
        ),
    ],
)
def test_refusals(sizes, given, reason: str) -> None:
    model = _model(*sizes, **given)
    for name in [name for name, shape in given.items() if shape is None]:
        [node] = model.graph.node
        node.input[list(node.input).index(name)] = ""
    model = prepare(model, {}).model
    with pytest.raises(UnsupportedOperatorError, match=reason):
        import_onnx(model, layer_table(model))
