"""Ranked GPU kernels of random functions, emulated, equal the same functions on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import tirx

from benchmarks.cuda_rows import row
from tests.emulator.cuda import ORDERS, run
from tests.kernels.cuda import serial
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.emit import NotApplicable, emit_kernel
from tvmopt.kernels.policies import policy_of

_TOLERANCES = {"float32": 1e-4, "float16": 6e-3, "bfloat16": 2e-2, "int32": 0.0}
_MOST = 40  # the test draws from this many configurations of a ranking
_EXTENTS = st.one_of(st.integers(1, 40), st.sampled_from([48, 64, 77, 100, 128, 136, 200, 333]))
_MATMULS = st.builds(
    "matmul_{}-{}-{}-{}-{}".format,
    st.sampled_from(["nt", "nn", "tn"]), _EXTENTS, _EXTENTS, _EXTENTS,
    st.sampled_from(["float16", "bfloat16", "int8", "float32"]),
)  # fmt: skip
_CONVOLUTIONS = st.builds(
    "conv2d-{0}-{1}-{2}-{3}-{4}-{5}-{5}-{6}-1-{7}-{8}".format,
    st.integers(1, 3), st.sampled_from([3, 8, 12, 16, 24, 40, 64]), st.integers(7, 20),
    st.integers(7, 20), st.sampled_from([3, 8, 24, 40, 65]), st.sampled_from([1, 3, 5]),
    st.integers(1, 2), st.integers(0, 2), st.sampled_from(["float16", "int8", "float32"]),
)  # fmt: skip
_OTHERS = st.builds(
    "{}-{}-{}-{}".format,
    st.sampled_from(["copy", "add", "sum", "max", "softmax", "gemv"]), _EXTENTS, _EXTENTS,
    st.sampled_from(["float16", "float32"]),
)  # fmt: skip


def _inputs(func: tirx.PrimFunc, rng: np.random.Generator) -> list[np.ndarray]:
    made = []
    for param in func.params[:-1]:
        shape, dtype = [int(e) for e in param.shape], str(param.dtype)
        if dtype == "int8":
            made.append(rng.integers(-128, 128, shape).astype(dtype))
        else:
            made.append(rng.standard_normal(shape).astype(dtype))
    return made


@given(
    name=st.one_of(_MATMULS, _CONVOLUTIONS, _OTHERS),
    gpu=st.sampled_from(["nvidia-h200", "nvidia-h200", "nvidia-a100"]),
    place=st.integers(0, _MOST - 1),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 99),
)
def _computes(name, gpu, place, order, seed) -> None:
    func, arch = row(name).func, GPUS[gpu]
    hints = [ranked.hint for ranked in list(policy_of(func, arch).ranked)[:_MOST]]
    hint = hints[place % len(hints)]
    try:
        kernel = emit_kernel(func, hint)
    except NotApplicable:
        return  # a refused candidate; tests of the ranking limit how many are refused
    inputs = _inputs(func, np.random.default_rng(seed))
    want = serial.run(func, inputs).astype(np.float64)
    [got] = run(kernel, inputs, [serial.empty_of(func)], arch, order=order, seed=seed)
    far = np.abs(got.astype(np.float64) - want)
    assert far.max() <= _TOLERANCES[str(func.params[-1].dtype)] * np.abs(want).max(), hint


def test_ranked_kernels_compute_what_their_functions_do() -> None:
    settings(max_examples=3, deadline=None, derandomize=True)(_computes)()


@pytest.mark.slow
def test_many_ranked_kernels_compute_what_their_functions_do() -> None:
    settings(max_examples=100, deadline=None, derandomize=True)(_computes)()
