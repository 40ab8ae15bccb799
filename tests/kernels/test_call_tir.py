"""Calls of TensorIR functions are told from other expressions, with and without sizes."""

from __future__ import annotations

import pytest
from tvm import relax, tirx
from tvm.ir import GlobalVar

from tvmopt.kernels.call_tir import called_function, is_call_tir, takes_tensors_only

X = relax.Var("x", relax.TensorType((2,), "float32"))
N = tirx.Var("n", "int64")


def _call(*sizes: relax.Expr) -> relax.Call:
    call = relax.call_tir(GlobalVar("f"), [X], relax.TensorType((2,), "float32"))
    return relax.Call(call.op, [*call.args, *sizes], call.attrs, call.ty_args)


def test_a_call_of_tensors() -> None:
    assert is_call_tir(_call()) and takes_tensors_only(_call())
    assert called_function(_call()) == "f"


def test_a_call_with_sizes_takes_more_than_tensors() -> None:
    call = _call(relax.ShapeExpr([N]))
    assert is_call_tir(call) and not takes_tensors_only(call)
    assert called_function(call) == "f"


@pytest.mark.parametrize("expr", [X, None, relax.op.nn.relu(X), relax.Call(GlobalVar("g"), [X])])
def test_other_expressions(expr: object) -> None:
    assert not is_call_tir(expr) and not takes_tensors_only(expr)
    assert called_function(expr) == ""
