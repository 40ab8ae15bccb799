"""LayerNorm of 16-bit tensors: one function, computed in float32."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.emulator.cuda import run
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.emit import emit_kernel
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.lower import lower
from tvmopt.transform.narrow_norm import ReadNarrowNorms

op = relax.op
H200 = GPUS["nvidia-h200"]
RNG = np.random.default_rng(0)
SCALE, SHIFT = (RNG.standard_normal(96).astype(np.float32) for _ in range(2))
NUMPY = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def norm(emit, x):
    return emit(op.nn.layer_norm(x, relax.const(SCALE), relax.const(SHIFT), [-1], 1e-5))


def expected(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * SCALE + SHIFT


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_cast_is_part_of_the_function(relax_main, dtype) -> None:
    def body(emit, x):
        return emit(op.astype(norm(emit, emit(op.astype(x, "float32"))), dtype))

    lowered = lower(relax_main(body, x=((5, 7, 96), dtype)), H200.to_tvm())
    [func] = [f for _, f in lowered.functions_items() if isinstance(f, tirx.PrimFunc)]
    assert [str(param.dtype) for param in func.params] == [dtype, "float32", "float32", dtype]
    # A mean that is 100 times the deviation.
    x = (RNG.standard_normal((5, 7, 96)) + 100).astype(NUMPY[dtype])
    best = policy_of(func, H200).ranked[0].hint
    kernel = emit_kernel(func.with_attr("global_symbol", "main"), best)
    [got] = run(kernel, [x, SCALE, SHIFT], [np.full_like(x, np.nan)], H200)
    close = 1e-3 if dtype == "float16" else 8e-3
    np.testing.assert_allclose(got.astype("f8"), expected(x), rtol=close, atol=close)


def other_readers(emit, x):
    wide = emit(op.astype(x, "float32"))
    return emit(op.add(norm(emit, wide), wide))


def test_other_readers_keep_the_cast(relax_main) -> None:
    mod = ReadNarrowNorms()(relax_main(other_readers, x=((5, 96), "float16")))
    x = RNG.standard_normal((5, 96)).astype(np.float16)
    machine = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got, expected(x) + x, rtol=1e-5, atol=1e-5)
    assert "nn.layer_norm" not in mod.script() and "astype" in mod.script()


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_other_dtypes_stay(relax_main, dtype) -> None:
    def body(emit, x):
        wide = x if dtype == "float32" else emit(op.astype(x, "float32"))
        return norm(emit, wide)

    mod = relax_main(body, x=((5, 96), dtype))
    tvm.ir.assert_structural_equal(ReadNarrowNorms()(mod), mod)


def layer(emit, x, pre: bool):
    """A residual layer with a LayerNorm before or behind it."""
    w = relax.const(RNG.standard_normal((96, 96)).astype(np.float32) / 10)
    y = emit(op.add(x, emit(op.matmul(norm(emit, x) if pre else x, w))))
    return y if pre else norm(emit, y)


@pytest.mark.parametrize("pre", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("narrow", [False, True])
def test_what_a_gpu_stores(relax_main, pre, narrow) -> None:
    def body(emit, x):
        x = layer(emit, layer(emit, x, pre), pre)
        return layer(emit, x, pre)

    mod = relax_main(body, x=((128, 96), "float32"))
    converted = convert_module(mod, dtype="float16", narrow_norms=narrow).mod
    lowered = lower(converted, H200.to_tvm())
    bindings = lowered["main"].body.blocks[0].bindings
    sums = [
        str(binding.var.ty.dtype)
        for binding in bindings
        if "matmul" in binding.value.args[0].name_hint
    ]
    # The last sum is the result, or read by the LayerNorm that is: no layer reads it.
    assert sums == [*["float16" if narrow else "float32"] * 2, "float32"]
    names = [binding.value.args[0].name_hint.rstrip("0123456789") for binding in bindings]
    assert names.count("cast") == (0 if pre else 1)  # of the input
