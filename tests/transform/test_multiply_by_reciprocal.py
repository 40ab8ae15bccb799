"""Divisions by constants behind convolutions and matmuls."""

from __future__ import annotations

import numpy as np
from tvm import relax
from tvm.relax import op

from tvmopt.transform.multiply_by_reciprocal import MultiplyByReciprocal, reciprocal

OPERANDS = {"x": ((2, 3), "float32"), "w": ((3, 4), "float32")}


def f32(value: object) -> relax.Expr:
    return relax.const(np.asarray(value, "float32"), "float32")


def test_quotients_behind_a_matmul_become_one_product(relax_main, assert_same) -> None:
    def before(emit, x, w):
        shifted = emit(op.add(emit(op.matmul(x, w)), f32(3)))
        steps = emit(op.divide(emit(op.divide(shifted, f32(8))), f32(0.25)))
        return emit(op.multiply(f32(3), steps))

    def after(emit, x, w):
        shifted = emit(op.add(emit(op.matmul(x, w)), f32(3)))
        return emit(op.multiply(shifted, f32(1.5)))

    found = MultiplyByReciprocal()(relax_main(before, **OPERANDS))
    assert_same(found, relax_main(after, **OPERANDS))


def test_a_value_that_is_read_twice_is_computed_once(relax_main, assert_same) -> None:
    def net(emit, x, w, halve):
        y = emit(op.matmul(x, w))
        half = emit(halve(y))
        return emit(op.add(emit(op.exp(half)), half))

    found = MultiplyByReciprocal()(
        relax_main(lambda *args: net(*args, lambda y: op.divide(y, f32(2))), **OPERANDS)
    )
    wanted = relax_main(lambda *args: net(*args, lambda y: op.multiply(y, f32(0.5))), **OPERANDS)
    assert_same(found, wanted)


def test_a_table_keeps_its_quotients(relax_main, assert_same) -> None:
    def mean(emit, x):
        return emit(op.divide(emit(op.sum(x, axis=[1])), f32(10)))

    table = relax_main(mean, x=OPERANDS["x"])
    assert_same(MultiplyByReciprocal()(table), table)


def test_a_factor_for_each_channel_is_kept_apart(relax_main, assert_same) -> None:
    channels = [2.0, 4.0, 8.0, 16.0]

    def before(emit, x, w):
        scaled = emit(op.multiply(emit(op.matmul(x, w)), f32(channels)))
        return emit(op.divide(scaled, f32(2)))

    def after(emit, x, w):
        scaled = emit(op.multiply(emit(op.matmul(x, w)), f32(channels)))
        return emit(op.multiply(scaled, f32(0.5)))

    found = MultiplyByReciprocal()(relax_main(before, **OPERANDS))
    assert_same(found, relax_main(after, **OPERANDS))


def test_reciprocal_of_what_float32_cannot_hold() -> None:
    assert reciprocal(np.float32([0.0])) is None
    assert reciprocal(np.float32([1e-39])) is None
    assert reciprocal(np.float32([3e38])) is None
    assert reciprocal(np.float32([4.0])) == 0.25
