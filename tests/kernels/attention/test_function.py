"""The attention function against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.kernels.attention.reference import HEAD_RANGES, attention, numpy_dtype, operands
from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.kernels.attention.function import attention_function
from tvmopt.kernels.attention.problem import problem_of

CASES = [
    {},
    {"dtype": "float32", "value_size": 24},
    {"kv_heads": 1, "causal": MaskedBy.FIRST_KEY},
    {"causal": MaskedBy.LAST_KEY, "q_axes": "bshd", "out_axes": "bshd"},
    {"causal": MaskedBy.LAST_KEY, "queries": 19, "keys": 7},
    {"mask_shape": (1, 1, 5, 9), "mask_dtype": "float16", "k_axes": "bshd"},
    {"mask_shape": (2, 1, 1, 9), "mask_dtype": "bool", "v_axes": "sbhd", "dtype": "bfloat16"},
    {"mask_shape": (2, 4, 5, 9), "mask_dtype": "float32", "causal": MaskedBy.FIRST_KEY},
]


def small(**fields) -> AttentionProblem:
    """A small problem with these ``fields``."""
    default = {
        "batch": 2, "heads": 4, "kv_heads": 2, "queries": 5, "keys": 9, "head_size": 16,
        "value_size": 16, "dtype": "float16", "scale": 0.25,
    }  # fmt: skip
    return AttentionProblem(**{**default, **fields})


def _run(problem, inputs):
    func = attention_function(problem).with_attr("global_symbol", "main")
    built = tvm.compile(tvm.IRModule({"main": func}), target="llvm")
    shape, dtype = problem.shapes()[-1]
    out = tvm.runtime.tensor(np.full(shape, np.nan, numpy_dtype(dtype)))
    built["main"](*(tvm.runtime.tensor(x) for x in inputs), out)
    return out.numpy()


@pytest.mark.sample(4)
@pytest.mark.parametrize("fields", [*CASES, *HEAD_RANGES])
def test_function(fields):
    problem = small(**fields)
    inputs = operands(problem)
    close = 2e-2 if problem.dtype == "bfloat16" else 2e-3
    np.testing.assert_allclose(
        _run(problem, inputs).astype("f4"), attention(problem, inputs), rtol=close, atol=close
    )


def test_queries_that_see_no_key_give_zeros():
    problem = small(mask_shape=(1, 1, 5, 9), mask_dtype="bool")
    inputs = operands(problem)
    inputs[3][:, :, 2] = False
    got = _run(problem, inputs)
    assert not got[:, :, 2].any()
    np.testing.assert_allclose(got, attention(problem, inputs), rtol=2e-3, atol=2e-3)


def test_a_row_of_the_lowest_float_weighs_all_keys_alike():
    problem = small(mask_shape=(1, 1, 5, 9), mask_dtype="float32")
    inputs = operands(problem)
    inputs[3][:, :, 1] = np.finfo("f4").min
    mean = np.repeat(inputs[2].astype("f4").mean(2), 2, axis=1)
    np.testing.assert_allclose(_run(problem, inputs)[:, :, 1], mean, rtol=2e-3, atol=2e-3)


def test_the_function_carries_its_problem():
    problem = small(mask_shape=(1, 1, 1, 9), mask_dtype="bool", causal=MaskedBy.LAST_KEY)
    assert problem_of(attention_function(problem)) == problem


def test_many_scores_have_wide_indices():
    def index_dtypes(queries):
        func = attention_function(small(heads=16, queries=queries, keys=16384))
        loop = func.body.block.body.seq[0]
        return str(loop.loop_var.ty.dtype)

    assert index_dtypes(64) == "int32" and index_dtypes(16384) == "int64"
