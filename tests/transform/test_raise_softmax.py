"""RaiseSoftmax: the steps of a softmax become the operator, other quotients stay."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm import relax

from tests.transform.attention.graphs import Emit, module
from tvmopt.transform.simplify import simplify

_X = ((2, 3, 5), "float32")


def _steps(
    emit: Emit, x: relax.Var, axis: int = -1, of_max: relax.Var | None = None, sum_axis: int = -1
) -> relax.Expr:
    top = emit(relax.op.max(x if of_max is None else of_max, axis, keepdims=True))
    exponentials = emit(relax.op.exp(emit(relax.op.subtract(x, top))))
    total = emit(relax.op.sum(exponentials, sum_axis, keepdims=True))
    return relax.op.divide(exponentials, total)


def _names(body: Callable[..., relax.Expr], operands: int = 1) -> list[str]:
    """Return the operators of the simplified function."""
    mod = simplify(module(body, *[_X] * operands))
    relax.analysis.well_formed(mod)
    return [binding.value.op.name.removeprefix("relax.")
            for block in mod["main"].body.blocks for binding in block.bindings
            if isinstance(binding.value, relax.Call)]  # fmt: skip


@pytest.mark.parametrize("axis", [-1, 1])
def test_steps_become_the_operator(axis: int) -> None:
    mod = simplify(module(lambda emit, x: _steps(emit, x, axis, sum_axis=axis), _X))
    wanted = simplify(module(lambda emit, x: relax.op.nn.softmax(x, axis % 3), _X))
    tvm.ir.assert_structural_equal(mod["main"].body, wanted["main"].body, map_free_vars=True)


def test_another_axis_stays() -> None:
    assert "nn.softmax" not in _names(lambda emit, x: _steps(emit, x, 1, sum_axis=2))


def test_the_maximum_of_another_tensor_stays() -> None:
    names = _names(lambda emit, x, y: _steps(emit, x, of_max=y), 2)
    assert "nn.softmax" not in names and "divide" in names


def test_the_sum_of_another_tensor_stays() -> None:
    def body(emit: Emit, x: relax.Var, y: relax.Var) -> relax.Expr:
        top = emit(relax.op.max(x, -1, keepdims=True))
        exponentials = emit(relax.op.exp(emit(relax.op.subtract(x, top))))
        return relax.op.divide(exponentials, emit(relax.op.sum(y, -1, keepdims=True)))

    assert "nn.softmax" not in _names(body, 2)
