"""Grouped queries in ONNX graphs: K and V that are repeated for heads of Q are read once."""

from __future__ import annotations

import functools
import math

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import tirx

from tests.emulator.cuda import run
from tests.kernels.attention.reference import attention, operands
from tvmopt.device.gpus import GPUS
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.kernels.attention.problem import AttentionProblem, problem_of
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.attention.fuse import find_attention
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower
from tvmopt.transform.simplify import simplify

_HEADS, _KV_HEADS, _SIZE, _KEYS = 8, 2, 32, 40
_TIMES = _HEADS // _KV_HEADS


class _Graph:
    """Nodes and constants of a graph under construction."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, operator: str, *inputs: str, **attributes) -> str:
        """Add a node; return the name of its output."""
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def constant(self, values, dtype: str = "int64") -> str:
        """Add a constant; return its name."""
        name = f"constant{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name


def _by_expand(g: _Graph, x: str) -> str:
    """``repeat_kv`` of Hugging Face's models."""
    wide = g.add("Unsqueeze", x, g.constant([2]))
    shape = g.constant([1, _KV_HEADS, _TIMES, _KEYS, _SIZE])
    wide = g.add("Expand", wide, shape)
    return g.add("Reshape", wide, g.constant([1, _HEADS, _KEYS, _SIZE]))


def _by_tile(g: _Graph, x: str) -> str:
    wide = g.add("Unsqueeze", x, g.constant([2]))
    wide = g.add("Tile", wide, g.constant([1, 1, _TIMES, 1, 1]))
    return g.add("Reshape", wide, g.constant([1, _HEADS, _KEYS, _SIZE]))


def _by_reshape(g: _Graph, x: str) -> str:
    """Reshape in place of Unsqueeze, and the count of heads left to the last Reshape."""
    wide = g.add("Reshape", x, g.constant([1, _KV_HEADS, 1, _KEYS, _SIZE]))
    wide = g.add("Expand", wide, g.constant([1, 1, _TIMES, 1, 1]))
    return g.add("Reshape", wide, g.constant([1, -1, _KEYS, _SIZE]))


def _by_heads_last(g: _Graph, x: str) -> str:
    """``repeat_interleave`` before the heads go in front of the keys."""
    back = g.add("Transpose", x, perm=[0, 2, 1, 3])
    wide = g.add("Unsqueeze", back, g.constant([3]))
    wide = g.add("Expand", wide, g.constant([1, _KEYS, _KV_HEADS, _TIMES, _SIZE]))
    wide = g.add("Reshape", wide, g.constant([1, _KEYS, _HEADS, _SIZE]))
    return g.add("Transpose", wide, perm=[0, 2, 1, 3])


def _model(repeat, queries: int, dtype: str = "float32") -> onnx.ModelProto:
    """A decoder's attention: keys and values of the past in front of new ones."""
    g = _Graph()
    q = g.add("Reshape", "q", g.constant([1, queries, _HEADS, _SIZE]))
    q = g.add("Transpose", q, perm=[0, 2, 1, 3])
    parts = []
    for name in "kv":
        new = g.add("Reshape", name, g.constant([1, queries, _KV_HEADS, _SIZE]))
        new = g.add("Transpose", new, perm=[0, 2, 1, 3])
        g.nodes.append(helper.make_node("Concat", [f"past_{name}", new], [f"all_{name}"], axis=2))
        parts.append(repeat(g, f"all_{name}"))
    transposed = g.add("Transpose", parts[0], perm=[0, 1, 3, 2])
    scores = g.add("Mul", g.add("MatMul", q, transposed), g.constant(0.2, dtype))
    out = g.add("MatMul", g.add("Softmax", scores, axis=-1), parts[1])
    out = g.add("Transpose", out, perm=[0, 2, 1, 3])
    out = g.add("Reshape", out, g.constant([1, queries, _HEADS * _SIZE]))
    weight = g.constant(np.eye(_HEADS * _SIZE, 16), dtype)
    g.nodes.append(helper.make_node("MatMul", [out, weight], ["out"]))
    past = (1, _KV_HEADS, _KEYS - queries, _SIZE)
    shapes = {
        "q": (1, queries, _HEADS * _SIZE),
        **dict.fromkeys("kv", (1, queries, _KV_HEADS * _SIZE)),
        **{f"past_{name}": past for name in "kv"},
    }
    whole = (1, _KV_HEADS, _KEYS, _SIZE)
    results = {"out": (1, queries, 16), "all_k": whole, "all_v": whole}
    kind = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}[dtype]
    info = functools.partial(helper.make_tensor_value_info, elem_type=kind)
    graph = helper.make_graph(
        g.nodes,
        "g",
        [info(name, shape=shape) for name, shape in shapes.items()],
        [info(name, shape=shape) for name, shape in results.items()],
        g.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


_REPEATS = {
    "expand": _by_expand, "tile": _by_tile, "reshape": _by_reshape, "heads last": _by_heads_last,
}  # fmt: skip


@pytest.mark.parametrize("name", _REPEATS)
@pytest.mark.parametrize("queries", [1, 3])
def test_heads_are_not_repeated(name: str, queries: int) -> None:
    model = prepare(_model(_REPEATS[name], queries), {}).model
    module = import_onnx(model, layer_table(model))
    [call] = find_attention(simplify(module)["main"]).values()
    wanted = AttentionProblem(
        1, _HEADS, _KV_HEADS, queries, _KEYS, _SIZE, _SIZE, "float32", call.problem.scale,
        q_axes="bshd", out_axes="bshd",
    )  # fmt: skip
    assert call.problem == wanted and call.problem.scale == pytest.approx(0.2, rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_its_numbers(dtype: str) -> None:
    gpu = GPUS["nvidia-a100"]
    model = prepare(_model(_by_expand, 1, dtype), {}).model
    module = convert_module(import_onnx(model, layer_table(model)), dtype="float16").mod
    lowered = lower(module, gpu.to_tvm())
    functions = [f for _, f in lowered.functions_items() if isinstance(f, tirx.PrimFunc)]
    [func] = [func for func in functions if problem_of(func) is not None]
    # No tensor has the size of the repeated heads.
    sizes = [math.prod(map(int, p.shape)) for each in functions for p in each.params]
    assert max(sizes) < _HEADS * _KEYS * _SIZE
    kernel = emit(func, policy_of(func, gpu).ranked[0].hint)
    problem = problem_of(func)
    assert problem is not None and problem.kv_heads == _KV_HEADS
    inputs = operands(problem)
    want = attention(problem, inputs)
    [got] = run(kernel, inputs, [np.full(want.shape, np.nan, "float16")], gpu)
    np.testing.assert_allclose(got.astype("f4"), want, rtol=3e-3, atol=3e-3)
