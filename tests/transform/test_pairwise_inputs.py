"""PairwiseInputs: ONNX Max, Min, Sum and Mean of several tensors become elementwise operators."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
import tvm
import tvm_ffi
from onnx import helper
from tvm import relax, tirx

from tests.libraries import loaded
from tests.transform.attention.graphs import Emit, module
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.frontend.importer import import_onnx
from tvmopt.frontend.prepare import prepare
from tvmopt.transform.lower import lower
from tvmopt.transform.pairwise_inputs import PairwiseInputs

_X, _ROW = ((2, 3), "float32"), ((3,), "float32")
_OPERATORS = {
    "Max": (relax.op.max, relax.op.maximum),
    "Min": (relax.op.min, relax.op.minimum),
    "Sum": (relax.op.sum, relax.op.add),
    "Mean": (relax.op.mean, relax.op.add),
}


@pytest.mark.parametrize("name", _OPERATORS)
def test_a_reduction_of_stacked_tensors_is_pairwise(name: str) -> None:
    reduce, pairwise = _OPERATORS[name]

    def stacked(emit: Emit, x: relax.Var, y: relax.Var, row: relax.Var) -> relax.Expr:
        fields = [emit(relax.op.broadcast_to(one, (2, 3))) for one in (x, y, row)]
        return reduce(emit(relax.op.stack(fields, axis=0)), axis=0)

    def direct(emit: Emit, x: relax.Var, y: relax.Var, row: relax.Var) -> relax.Expr:
        found = emit(pairwise(emit(pairwise(emit(relax.op.broadcast_to(x, (2, 3))), y)), row))
        return relax.op.divide(found, relax.const(3, "float32")) if name == "Mean" else found

    got, wanted = (
        tvm.transform.Sequential([pass_, relax.transform.CanonicalizeBindings()])(
            relax.transform.DeadCodeElimination()(module(body, _X, _X, _ROW))
        )
        for body, pass_ in ((stacked, PairwiseInputs()), (direct, relax.transform.Normalize()))
    )
    got = relax.transform.DeadCodeElimination()(got)
    tvm.ir.assert_structural_equal(got["main"].body, wanted["main"].body, map_free_vars=True)


def _stays(body: Callable[..., relax.Expr]) -> bool:
    mod = module(body, _X, _X)
    return bool(tvm_ffi.structural_equal(PairwiseInputs()(mod), mod))


def test_other_reductions_stay() -> None:
    def kept(axis: int, keepdims: bool) -> Callable[..., relax.Expr]:
        return lambda emit, x, y: relax.op.sum(
            emit(relax.op.stack([x, y], axis=0)), axis=axis, keepdims=keepdims
        )

    assert _stays(kept(1, False)) and _stays(kept(0, True))
    assert _stays(lambda emit, x, y: relax.op.sum(emit(relax.op.add(x, y)), axis=0))
    assert not _stays(kept(0, False))


@pytest.fixture(params=_OPERATORS)
def residual(request, make_model):
    """A convolution, the operator on its result, its input and a constant, and a rectifier."""
    tensor = ("float32", (1, 8, 5, 5))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv"),
        helper.make_node(request.param, ["c", "x", "b"], ["s"], "joined"),
        helper.make_node("Relu", ["s"], ["y"], "relu"),
    ]
    generator = np.random.default_rng(0)
    constants = {
        "w": generator.standard_normal((8, 8, 1, 1), np.float32),
        "b": generator.standard_normal((8, 1, 1), np.float32),
    }
    return make_model(nodes, {"x": tensor}, {"y": tensor}, constants)


def test_a_residual_fuses_with_its_convolution_and_equals_onnx_runtime(residual, tmp_path):
    target = resolve_target("host", 1)
    lowered = lower(import_onnx(prepare(residual, {}).model), target.to_tvm())
    functions = [f for _, f in lowered.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) == 1
    build_library(lowered, target, tmp_path / "op.so")
    x = np.random.default_rng(1).standard_normal((1, 8, 5, 5), np.float32)
    [got] = loaded(tmp_path / "op.so")(x)
    session = ort.InferenceSession(residual.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(got, session.run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
