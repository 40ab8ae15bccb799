"""Softmax of rows: numbers against NumPy, instructions of the inner loop, predicted cycles."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.kernels.cpu.harness import ARCH, NARROW, TARGET, lower, prim_funcs
from tests.libraries import assembly
from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.finish import finish
from tvmopt.kernels.emit import emit
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE
from tvmopt.transform.lower import lower as lower_module

op, nn = relax.op, relax.op.nn

# Half a unit in the last place of the result, and the error of exp, sum and reciprocal in float32.
_ROUNDING = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_FLOAT32_ERROR = 2e-6


def _softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    wide = x.astype("float64")
    e = np.exp(wide - wide.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def _numbers(x: np.ndarray, arch=ARCH, axis: int = -1) -> np.ndarray:
    mod, rules = schedule_module(
        lower(lambda v: nn.softmax(v, axis), [(x.shape, str(x.dtype))]), arch
    )
    assert not [rule for rule in rules.values() if rule.startswith("unscheduled")]
    executable = tvm.compile(mod, TARGET, tir_pipeline=CPU_PIPELINE)
    got = relax.VirtualMachine(executable, tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
    assert got.dtype == x.dtype
    return got


@pytest.mark.parametrize("arch", [ARCH, NARROW])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("length", [7, 12, 33, 49, 128, 197, 384, 1000, 1024])
def test_relative_error(length: int, dtype: str, arch) -> None:
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = (np.random.default_rng(0).standard_normal((3, 5, length)) * 4).astype(kind)
    got, expected = _numbers(x, arch).astype("float64"), _softmax(x)
    least = 2.0**-14 if dtype == "float16" else 0.0  # smallest normal number
    tolerance = (_ROUNDING[dtype] + _FLOAT32_ERROR) * np.maximum(expected, least)
    assert (np.abs(got - expected) <= tolerance).all()


def test_axis_that_is_not_the_last() -> None:
    x = np.random.default_rng(0).standard_normal((2, 19, 48)).astype("float32")
    np.testing.assert_allclose(_numbers(x, axis=1), _softmax(x, 1), rtol=_FLOAT32_ERROR)


def test_special_values() -> None:
    x = np.zeros((8, 128), "float32")
    x[0, 5:] = -np.inf  # masked
    x[1, 7] = np.nan
    x[2, 7] = np.inf
    x[3] = -np.inf
    x[4] = np.linspace(-100, 0, 128)
    x[5, 1:] = np.finfo("float32").min
    x[6] = 3e38
    x[6, 0] = -3e38
    with np.errstate(invalid="ignore"):
        expected = _softmax(x)
    got = _numbers(x)
    np.testing.assert_allclose(got, expected, rtol=_FLOAT32_ERROR, atol=2.0**-126)
    assert (got[0, 5:] == 0).all()
    assert (got[5, 1:] == 0).all()
    assert np.isnan(got[1:4]).all()


def _kernel(target: str, source: str, stored: str, length: int = 128) -> Counter[str]:
    """Return the instructions of softmax over rows of ``length``."""
    spec = resolve_target(target, 1)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((12, 64, length), source))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(nn.softmax(x, -1))
            y = builder.emit(op.astype(y, stored)) if stored != source else y
            out = builder.emit_output(y)
        builder.emit_func_output(out)
    mod = lower_module(builder.get(), spec.to_tvm())
    [func] = [f for _, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    best = policy_of(func, spec.arch()).ranked[0]
    assert best.hint.template == "row_reduction"
    kernel = finish(emit(func, best.hint).mod["main"], func)
    return Counter(line.split()[0] for line in assembly(kernel, spec) if line.strip())


@pytest.mark.parametrize("target", ["sapphirerapids", "cascadelake", "haswell"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_row_needs_one_division_and_few_scalar_steps(target: str, dtype: str) -> None:
    found = _kernel(target, dtype, dtype)
    assert found["vdivps"] == 0
    assert found["vdivss"] == 1
    assert found["vmaxss"] <= 2
    assert found["vaddss"] <= 2


@pytest.mark.parametrize("target", ["sapphirerapids", "cascadelake"])
def test_exp_takes_few_instructions(target: str) -> None:
    found = _kernel(target, "float32", "float32")
    vectors = 128 // 16
    fmas = sum(n for name, n in found.items() if name.startswith(("vfmadd", "vfmsub", "vfnmadd")))
    assert fmas == 7 * vectors
    assert not [name for name in found if name.startswith(("vcmp", "vblend", "vpblend", "vrnd"))]
    assert found["vpslld"] == found["vminps"] == vectors


def test_an_input_of_16_bits_is_computed_in_one_kernel_with_a_sum_in_float32() -> None:
    [func] = prim_funcs(lower(lambda x: nn.softmax(x, -1), [((8, 128), "bfloat16")])).values()
    assert "T_softmax_expsum = T.sblock_alloc_buffer((T.int64(8),))" in func.script()
    found = _kernel("sapphirerapids", "bfloat16", "bfloat16")
    assert found["vcvtneps2bf16"] == found["vpmovzxwd"] == 128 // 16


def test_exp_counts_in_the_predicted_cycles() -> None:
    def cycles(build) -> float:
        [func] = prim_funcs(lower(build, [((12, 128, 128), "float32")])).values()
        return policy_of(func, ARCH).cycles

    softmax, largest = cycles(lambda x: nn.softmax(x, -1)), cycles(lambda x: op.max(x, -1))
    vectors = 12 * 128 * 128 / ARCH.lanes("float32") / ARCH.cores
    # 12 instructions of exp, maximum, difference, sum and product, on two ports.
    assert 6 * vectors < softmax < 18 * vectors
    assert softmax > 2 * largest
