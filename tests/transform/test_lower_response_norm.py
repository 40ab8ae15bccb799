"""LRN over the innermost axis is one kernel on a CPU, with the results of Relax's operators."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from tests.libraries import assembly, loaded
from tests.transform.attention.graphs import Emit, module
from tvmopt.build import build_library
from tvmopt.device.target import resolve_target
from tvmopt.kernels.response_norm import ResponseNorm
from tvmopt.transform.lower import lower
from tvmopt.transform.response_norm import response_norm_call

_TARGET = resolve_target("host", 1)
_NORM = {"alpha": 1e-4, "beta": 0.75, "bias": 1.0}
_OTHERS = {"alpha": 0.5, "beta": 0.6, "bias": 2.0}


def _graph(norm: ResponseNorm, shape: tuple[int, ...], dtype: str) -> tvm.IRModule:
    """Return LRN of a tensor of ``dtype``, computed in float32, as the conversion makes it."""

    def body(emit: Emit, x: relax.Var) -> relax.Expr:
        wide = x if dtype == "float32" else emit(relax.op.astype(x, "float32"))
        y = emit(response_norm_call(norm, wide))
        return y if dtype == "float32" else relax.op.astype(y, dtype)

    return module(body, (shape, dtype))


def _functions(mod: tvm.IRModule) -> list[str]:
    names = [v.name_hint for v, f in mod.functions_items() if isinstance(f, tirx.PrimFunc)]
    return [name.rstrip("0123456789") for name in names]


def _by_numpy(x: np.ndarray, norm: ResponseNorm) -> np.ndarray:
    """Return LRN of (..., C) in float64; NaN behind the windows of a non-finite square."""
    squares = np.square(x.astype(np.float32))
    channels = x.shape[-1]
    lost = np.zeros(x.shape, bool)
    sums = np.zeros(x.shape, np.float64)
    for c in range(channels):
        sums[..., c] = squares[..., max(0, c - norm.before) : c + norm.after + 1].sum(
            axis=-1, dtype=np.float64
        )
        lost[..., c] = ~np.isfinite(squares[..., : max(0, c - norm.before)]).all(axis=-1)
    scale = norm.bias + norm.alpha / norm.size * sums
    return np.where(lost, np.nan, x.astype(np.float64) / scale**norm.beta)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("attributes", [_NORM, _OTHERS], ids=["default", "others"])
@pytest.mark.parametrize("size", [1, 2, 5, 11])
@pytest.mark.parametrize("shape", [(2, 5, 3, 64), (1, 4, 23), (3, 40)], ids=str)
def test_values(shape, size, attributes, dtype, tmp_path):
    norm = ResponseNorm(axis=len(shape) - 1, size=size, **attributes)
    lowered = lower(_graph(norm, shape, dtype), _TARGET.to_tvm())
    assert _functions(lowered) == ["local_response_norm"]
    build_library(lowered, _TARGET, tmp_path / "norm.so")
    run = loaded(tmp_path / "norm.so")
    rng = np.random.default_rng(size)
    numpy_dtype = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, np.dtype(dtype))
    x = (100 * rng.standard_normal(shape)).astype(numpy_dtype)
    rtol = {"float32": 2e-6, "bfloat16": 4e-3, "float16": 6e-4}[dtype]
    atol = 6e-8 if dtype == "float16" else 0  # a denormal number's rounding
    got = run(x)[0].astype(np.float64)
    np.testing.assert_allclose(got, _by_numpy(x, norm), rtol=rtol, atol=atol)
    if dtype == "float16":
        return  # its squares are finite in float32
    rtol = max(rtol, 3e-6)  # powers of large numbers
    for value in (np.nan, np.inf, -np.inf, 1e38, 1.5e19):
        x.flat[x.size // 2 + 3] = value
        with np.errstate(over="ignore", invalid="ignore"):
            want = _by_numpy(x, norm)
        got = run(x)[0].astype(np.float64)
        np.testing.assert_allclose(got, want, rtol=rtol, err_msg=str(value))


@pytest.mark.parametrize(("axis", "target"), [(1, "host"), (3, "nvidia/nvidia-h100")])
def test_other_axes_and_gpus_have_operators(axis, target):
    norm = ResponseNorm(axis=axis, size=5, **_NORM)
    graph = _graph(norm, (1, 16, 4, 16), "float32")
    lowered = lower(graph, resolve_target(target, 1).to_tvm())
    assert "local_response_norm" not in _functions(lowered)
    assert any("pool" in name for name in _functions(lowered))


def test_vectors_need_no_division_with_avx512_and_round_with_its_instruction():
    spec = resolve_target("sapphirerapids", 1)
    norm = ResponseNorm(axis=3, size=5, **_NORM)
    lowered = lower(_graph(norm, (1, 4, 4, 64), "bfloat16"), spec.to_tvm())
    [func] = [f for _, f in lowered.functions_items() if isinstance(f, tirx.PrimFunc)]
    found = {line.split()[0] for line in assembly(func, spec) if "%zmm" in line}
    assert {"vrsqrt14ps", "vcvtneps2bf16"} <= found
    assert not {"vdivps", "vsqrtps"} & found
