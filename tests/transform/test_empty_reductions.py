"""Reductions over no elements give their initial value."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import tvm
from onnx import TensorProto, helper
from tvm.script import tirx as T  # noqa: N812

import tvmopt
from tvmopt.transform.empty_reductions import InitialiseEmptyReductions


@T.prim_func(s_tir=True)
def _before(x: T.Buffer((2, 0, 4), "float32"), y: T.Buffer((2, 4), "float32")) -> None:
    for i, j, k in T.grid(2, 4, 0):
        with T.sblock("sum"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                y[vi, vj] = T.float32(0)
            y[vi, vj] = y[vi, vj] + x[vi, vk, vj]


@T.prim_func(s_tir=True)
def _after(x: T.Buffer((2, 0, 4), "float32"), y: T.Buffer((2, 4), "float32")) -> None:
    for i, j in T.grid(2, 4):
        with T.sblock("sum_init"):
            vi, vj = T.axis.remap("SS", [i, j])
            y[vi, vj] = T.float32(0)
    for i, j, k in T.grid(2, 4, 0):
        with T.sblock("sum_update"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            y[vi, vj] = y[vi, vj] + x[vi, vk, vj]


def _bare(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    return func.without_attr("global_symbol")


def _changed(func: tvm.tirx.PrimFunc) -> tvm.tirx.PrimFunc:
    return InitialiseEmptyReductions()(tvm.IRModule({"main": _bare(func)}))["main"]


def test_the_initial_value_is_stored_apart() -> None:
    tvm.ir.assert_structural_equal(_changed(_before), _bare(_after))


@T.prim_func(s_tir=True)
def _filled(x: T.Buffer((3, 4), "float32"), y: T.Buffer((4,), "float32")) -> None:
    for j, k in T.grid(4, 3):
        with T.sblock("sum"):
            vj, vk = T.axis.remap("SR", [j, k])
            with T.init():
                y[vj] = T.float32(0)
            y[vj] = y[vj] + x[vk, vj]


def test_a_reduction_of_some_elements_stays() -> None:
    tvm.ir.assert_structural_equal(_changed(_filled), _bare(_filled))


def _selection(op: str) -> onnx.ModelProto:
    """Return a model that reduces the rows of ``t`` (5, 4) whose ``x`` (5,) is not zero."""
    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["rows"]),
        helper.make_node("GatherND", ["t", "rows"], ["chosen"]),
    ]
    if op == "MatMul":
        nodes.append(helper.make_node("Transpose", ["chosen"], ["transposed"]))
        nodes.append(helper.make_node("MatMul", ["transposed", "chosen"], ["y"]))
    else:
        nodes.append(helper.make_node(op, ["chosen"], ["y"], axes=[0]))
    values = {"x": [5], "t": [5, 4], "y": [4, 4] if op == "MatMul" else [1, 4]}
    x, t, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in values.items()
    )
    graph = helper.make_graph(nodes, "selection", [x, t], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=8)


@pytest.mark.sample(2)
@pytest.mark.parametrize("op", ["MatMul", "ReduceL2", "ReduceProd", "ReduceSum"])
def test_a_selection_of_nothing_is_reduced_as_in_onnx_runtime(op: str) -> None:
    model = _selection(op)
    compiled = tvmopt.compile(model, fallback="refuse", threads=2)
    session = ort.InferenceSession(model.SerializeToString())
    t = np.random.default_rng(0).standard_normal((5, 4), np.float32)
    for x in (np.zeros(5, np.float32), np.array([0, 1, 0, 1, 1], np.float32)):
        used = [np.full(size, np.inf, np.float32) for size in (4, 16, 64) for _ in range(50)]
        del used  # memory that the outputs may take is not zero
        arrays = {"x": x, "t": t}
        np.testing.assert_allclose(compiled(arrays)[0], session.run(None, arrays)[0], rtol=1e-5)
