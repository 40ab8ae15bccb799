"""FuseRmsNorm: spellings of RMSNorm become one function; graphs that are something else stay."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.emulator.cuda import run
from tvmopt.device.target import resolve_target
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.transform.lower import lower
from tvmopt.transform.rms_norm import FuseRmsNorm

op = relax.op
CPU = tvm.target.Target({"kind": "llvm"})
GPU = resolve_target("nvidia-h200")
SHAPE, COLUMNS = (2, 3, 40), 40
WEIGHT = np.random.default_rng(0).standard_normal(COLUMNS).astype("float32")


def scalar(value, dtype="float32"):
    return relax.const(np.array(value, dtype))


def normalised(emit, x, square="power", root="sqrt", inverse="divide"):
    squares = op.power(x, scalar(2.0)) if square == "power" else op.multiply(x, x)
    mean = emit(op.mean(emit(squares), [-1], keepdims=True))
    under = emit(op.add(mean, scalar(1e-2)))
    if root == "rsqrt":
        return emit(op.multiply(x, emit(op.rsqrt(under))))
    if inverse == "reciprocal":
        return emit(op.multiply(emit(op.divide(scalar(1.0), emit(op.sqrt(under)))), x))
    return emit(op.divide(x, emit(op.sqrt(under))))


def weighted(emit, x, **how):
    return op.multiply(normalised(emit, x, **how), relax.const(WEIGHT))


def in_float16(emit, x):
    """As exporters write it: float32 inside, the weight in float16."""
    y = emit(op.astype(normalised(emit, emit(op.astype(x, "float32"))), "float16"))
    return op.multiply(relax.const(WEIGHT.astype("float16")), y)


def expected(x, weight=WEIGHT):
    x = x.astype("float64")
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-2) * weight


def functions(mod):
    return [f for _, f in mod.functions_items() if isinstance(f, tvm.tirx.PrimFunc)]


def results(mod, x):
    machine = relax.VirtualMachine(tvm.compile(lower(mod, CPU), CPU), tvm.cpu())
    return machine["main"](tvm.runtime.tensor(x)).numpy()


@pytest.mark.parametrize(
    ("body", "dtype", "weight"),
    [
        (weighted, "float32", WEIGHT),
        (lambda e, x: weighted(e, x, square="product"), "float32", WEIGHT),
        (lambda e, x: weighted(e, x, root="rsqrt"), "float32", WEIGHT),
        (lambda e, x: weighted(e, x, inverse="reciprocal"), "float32", WEIGHT),
        (lambda e, x: op.astype(weighted(e, x), "float16"), "float32", WEIGHT),
        (normalised, "float32", 1.0),
        (in_float16, "float16", WEIGHT),
    ],
    ids=["plain", "product", "rsqrt", "reciprocal", "cast", "no weight", "float16"],
)
def test_spellings_become_one_function_with_their_numbers(relax_main, body, dtype, weight) -> None:
    mod = relax_main(body, x=(SHAPE, dtype))
    fused = FuseRmsNorm()(mod)
    [function] = functions(fused)
    call, *_ = [b.value for block in fused["main"].body.blocks for b in block.bindings]
    assert call.op.name == "relax.call_tir" and str(call.ty.dtype) == str(mod["main"].ret_ty.dtype)
    assert len(function.params) == (3 if isinstance(weight, np.ndarray) else 2)
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(dtype)
    close = 1e-5 if str(call.ty.dtype) == "float32" else 2e-3
    np.testing.assert_allclose(results(fused, x), expected(x, weight), rtol=close, atol=close)


@pytest.mark.parametrize(
    "change",
    ["axis", "other rows", "mean is read", "weight of rows", "no constant"],
)
def test_others_stay(relax_main, change) -> None:
    def body(emit, x, y):
        of = y if change == "other rows" else x
        axis = 1 if change == "axis" else -1
        mean = emit(op.mean(emit(op.multiply(of, of)), [axis], keepdims=True))
        added = emit(op.sum(y)) if change == "no constant" else scalar(1e-2)
        under = emit(op.sqrt(emit(op.add(mean, added))))
        out = emit(op.divide(x, under))
        if change == "weight of rows":
            return op.multiply(out, relax.const(np.ones((2, 3, 1), "float32")))
        return emit(op.add(out, mean)) if change == "mean is read" else out

    fused = FuseRmsNorm()(relax_main(body, x=(SHAPE, "float32"), y=(SHAPE, "float32")))
    # A factor of each row is no weight: it stays behind the function.
    assert len(functions(fused)) == (change == "weight of rows")


def test_the_kernel_of_a_gpu_computes_the_same(relax_main) -> None:
    lowered = lower(relax_main(in_float16, x=((3, COLUMNS), "float16")), GPU.to_tvm())
    [function] = functions(lowered)
    hint = DefaultPolicy(function, GPU.arch()).ranked[0].hint
    assert hint.template == "gpu_row_reduction"
    x = np.random.default_rng(2).standard_normal((3, COLUMNS)).astype("float16")
    weight = WEIGHT.astype("float16").astype("float32")
    empty = np.full(x.shape, np.nan, "float16")
    [got] = run(emit_kernel(function, hint), [x, weight], [empty], GPU.arch())
    np.testing.assert_allclose(got, expected(x, weight), rtol=3e-3, atol=3e-3)
