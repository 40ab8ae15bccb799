"""Divisions by constants behind convolutions and matmuls."""

from __future__ import annotations

import numpy as np
import tvm
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from tvmopt.transform.multiply_by_reciprocal import MultiplyByReciprocal, reciprocal


def _same(before: tvm.IRModule, after: tvm.IRModule) -> None:
    tvm.ir.assert_structural_equal(MultiplyByReciprocal()(before), after)


def test_quotients_behind_a_matmul_become_one_product() -> None:
    @I.ir_module
    class Before:
        @R.function
        def main(x: R.Tensor((2, 3), "float32"), w: R.Tensor((3, 4), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                shifted = R.add(y, R.const(3.0))
                a = R.divide(shifted, R.const(8.0))
                b = R.divide(a, R.const(0.25))
                c = R.multiply(R.const(3.0), b)
                R.output(c)
            return c

    @I.ir_module
    class After:
        @R.function
        def main(x: R.Tensor((2, 3), "float32"), w: R.Tensor((3, 4), "float32")):
            with R.dataflow():
                y = R.matmul(x, w)
                shifted = R.add(y, R.const(3.0))
                a = R.multiply(shifted, R.const(0.125))
                b = R.multiply(shifted, R.const(0.5))
                c = R.multiply(shifted, R.const(1.5))
                R.output(c)
            return c

    _same(Before, After)


def test_a_table_keeps_its_quotients() -> None:
    @I.ir_module
    class Mean:
        @R.function
        def main(x: R.Tensor((2, 3), "float32")):
            with R.dataflow():
                total = R.sum(x, axis=[1])
                mean = R.divide(total, R.const(10.0))
                R.output(mean)
            return mean

    _same(Mean, Mean)


def test_a_factor_for_each_channel_is_not_merged_with_one_that_widens() -> None:
    channels = np.array([2.0, 4.0, 8.0, 16.0], "float32")
    builder = tvm.relax.BlockBuilder()
    x, w = (
        tvm.relax.Var(name, R.Tensor(shape, "float32"))
        for name, shape in (("x", (4, 4)), ("w", (4, 4)))
    )
    with builder.function("main", [x, w]):
        y = builder.emit(tvm.relax.op.matmul(x, w))
        first = builder.emit(tvm.relax.op.multiply(y, tvm.relax.const(channels)))
        second = builder.emit(tvm.relax.op.divide(first, tvm.relax.const(np.float32(2))))
        builder.emit_func_output(second)
    found = MultiplyByReciprocal()(builder.get())
    calls = [binding.value for binding in found["main"].body.blocks[0].bindings]
    assert [call.op.name for call in calls] == ["relax.matmul", "relax.multiply", "relax.multiply"]
    assert calls[2].args[0].same_as(found["main"].body.blocks[0].bindings[1].var)
    assert float(calls[2].args[1].value.numpy()) == 0.5


def test_reciprocal_of_what_float32_cannot_hold() -> None:
    assert reciprocal(np.float32([0.0])) is None
    assert reciprocal(np.float32([1e-39])) is None
    assert reciprocal(np.float32([3e38])) is None
    assert reciprocal(np.float32([4.0])) == 0.25
