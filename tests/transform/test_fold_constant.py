"""FoldConstantIfAny: the same result as TVM's pass, which does not run in vain."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.transform.fold_constant import FoldConstantIfAny

X = {"x": ((4, 4), "float32")}
op = relax.op
ONES = np.ones((4, 4), np.float32)


def _nothing(emit, x):
    return emit(op.add(emit(op.sqrt(x)), relax.const(ONES)))


def _constant_call(emit, x):
    return emit(op.add(x, emit(op.sqrt(relax.const(ONES)))))


def _chain(emit, x):
    return emit(op.add(x, emit(op.exp(emit(op.sqrt(relax.const(ONES)))))))


def _tuple(emit, x):
    both = emit(op.concat([relax.const(ONES[:2]), relax.const(ONES[2:])], axis=0))
    return emit(op.multiply(x, both))


def _named_constant(emit, x):
    return emit(op.add(x, emit(op.sqrt(emit(relax.const(ONES))))))


def _no_tensor(emit, x):
    return emit(op.add(x, emit(op.zeros(relax.ShapeExpr([4, 4]), "float32"))))


FOLDABLE = [_constant_call, _chain, _tuple, _named_constant, _no_tensor]


@pytest.mark.parametrize("body", [_nothing, *FOLDABLE])
def test_same_as_tvm(relax_main, assert_same, body):
    mod = relax_main(body, **X)
    assert_same(FoldConstantIfAny()(mod), relax.transform.FoldConstant()(mod))


@pytest.mark.parametrize("body", FOLDABLE)
def test_foldable_calls_are_found(relax_main, monkeypatch, body):
    ran = []

    class Fold:
        def __call__(self, mod):
            ran.append(mod)
            return mod

    monkeypatch.setattr(relax.transform, "FoldConstant", Fold)
    FoldConstantIfAny()(relax_main(body, **X))
    assert len(ran) == 1


def test_nothing_to_fold_returns_the_module(relax_main, monkeypatch):
    monkeypatch.setattr(
        relax.transform, "FoldConstant", lambda: pytest.fail("ran without a constant call")
    )
    mod = relax_main(_nothing, **X)
    assert FoldConstantIfAny()(mod).same_as(mod)


def test_called_kernels_are_folded(relax_main):
    with tvm.transform.PassContext(opt_level=3):
        mod = relax.transform.LegalizeOps()(relax_main(_constant_call, **X))
        folded = FoldConstantIfAny()(mod)
    text = folded["main"].script()
    assert text.count("call_tir") == 1  # the addition; the square root is a constant
