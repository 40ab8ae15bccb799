"""Reductions of 16-bit floats accumulate in float32; other dtypes keep TVM's legalization."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.device.target import resolve_target
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.transform.lower import lower
from tvmopt.transform.wide_sums import wide_sums

op = relax.op
CPU = tvm.target.Target({"kind": "llvm", "opt-level": 0})
GPU = resolve_target("nvidia-h200")
WIDTH = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
NUMPY = {op.sum: np.sum, op.mean: np.mean, op.variance: np.var, op.std: np.std}


def run(mod, x):
    machine = relax.VirtualMachine(tvm.compile(lower(mod, CPU), CPU), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize("dtype", WIDTH)
@pytest.mark.parametrize("reduce", NUMPY, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("shape", "axis", "keepdims"),
    [
        ((3, 4999), [-1], False), ((2, 3, 777), [0, 2], True), ((5, 7), None, False),
        ((1, 1), [1], True), ((2, 64, 9, 9), [1, 3, 2], False),
    ],
)  # fmt: skip
def test_long_reductions_are_precise(relax_main, reduce, shape, axis, keepdims, dtype) -> None:
    x = (np.random.default_rng(0).standard_normal(shape) + 3).astype(WIDTH[dtype])
    mod = relax_main(lambda emit, x: emit(reduce(x, axis, keepdims)), x=(shape, dtype))
    wanted = NUMPY[reduce](
        x.astype("float64"), axis=None if axis is None else tuple(axis), keepdims=keepdims
    )
    got = run(mod, x)
    assert got.dtype == x.dtype and got.shape == wanted.shape
    # Half an ulp of the result, and float32 rounding.
    last = 2.0**-11 if dtype == "float16" else 2.0**-8
    np.testing.assert_allclose(got.astype("float64"), wanted, rtol=1.01 * last, atol=1e-6)


@pytest.mark.parametrize("reduce", [op.mean, op.variance, op.std], ids=lambda f: f.__name__)
def test_more_elements_than_the_largest_float16(relax_main, reduce) -> None:
    x = np.full((2, 300, 300), 2.5, np.float16)
    x[:, ::2] = 4.5
    mod = relax_main(lambda emit, x: emit(reduce(x, [1, 2])), x=(x.shape, "float16"))
    got = run(mod, x)
    assert got.dtype == np.float16
    np.testing.assert_array_equal(got, 3.5 if reduce is op.mean else 1.0)


def test_shorter_means_are_one_function(relax_main) -> None:
    mod = relax_main(lambda emit, x: emit(op.mean(x, [1, 2])), x=((2, 200, 200), "float16"))
    lowered = lower(mod, GPU.to_tvm())
    [func] = [f for _, f in lowered.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]
    made = schedule_function(func, GPU.gpu)
    kernel, hint = made.func, made.hint
    assert hint.template != "gpu_fallback"
    assert {str(p.dtype) for p in kernel.params} == {"float16"}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("reduce", [op.sum, op.mean], ids=lambda f: f.__name__)
def test_other_types_are_as_they_were(relax_main, assert_same, reduce, dtype) -> None:
    mod = relax_main(lambda emit, x: emit(reduce(x, [1])), x=((3, 5), dtype))
    legalize = relax.transform.LegalizeOps
    assert_same(legalize(wide_sums())(mod), legalize()(mod))
