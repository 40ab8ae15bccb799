"""Attention of a graph on GPUs: one function, one kernel of ours, and its numbers."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from tvm import tirx

from tests.emulator.cuda import run
from tests.transform.attention.graphs import bert, module
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.attention.problem import ATTENTION_ATTR, problem_of
from tvmopt.kernels.cuda.hopper.attention.config import ATTENTION as HOPPER
from tvmopt.kernels.cuda.mma.attention.config import ATTENTION as MMA
from tvmopt.kernels.emit import emit
from tvmopt.kernels.policies import policy_of
from tvmopt.transform.lower import lower

_QKV = (2, 40, 3, 64)
_MASK = (2, 1, 1, 40)


def _lowered(gpu: str, dtype: str) -> list[tirx.PrimFunc]:
    """Return the functions of BERT's attention, in the order of their names."""
    mod = module(functools.partial(bert, dtype=dtype), *[(_QKV, dtype)] * 3, (_MASK, dtype))
    functions = lower(mod, GPUS[gpu].to_tvm()).functions_items()
    return [func for _, func in functions if isinstance(func, tirx.PrimFunc)]


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("gpu", "family"),
    [("nvidia-h200", HOPPER), ("nvidia-a100", MMA), ("nvidia-l4", MMA), ("nvidia-a10", MMA)],
)
def test_its_numbers(gpu: str, family: str) -> None:
    [func] = _lowered(gpu, "float16")
    problem = problem_of(func)
    assert problem is not None and problem.scale == 0.25
    hint = policy_of(func, GPUS[gpu]).ranked[0].hint
    assert hint.template == family
    kernel = emit(func, hint)
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=_QKV).astype("float16") for _ in range(3))
    mask = np.where(rng.random(_MASK) < 0.3, -1e4, 0).astype("float16")
    scores = np.einsum("bqhd,bkhd->bhqk", q, k, dtype="float32") / 4 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    want = np.einsum("bhqk,bkhd->bqhd", weights, v.astype("float32"))
    empty = np.full(_QKV, np.nan, "float16")
    [got] = run(kernel, [q, k, v, mask], [empty], GPUS[gpu])
    np.testing.assert_allclose(got.astype("float32"), want, rtol=3e-3, atol=3e-3)


@pytest.mark.parametrize(("gpu", "dtype"), [("nvidia-h200", "float32"), ("nvidia-t4", "float16")])
def test_separate_operators_stay_where_no_kernel_takes_it(gpu: str, dtype: str) -> None:
    functions = _lowered(gpu, dtype)
    assert len(functions) > 1
    assert not any(ATTENTION_ATTR in (func.attrs or {}) for func in functions)
