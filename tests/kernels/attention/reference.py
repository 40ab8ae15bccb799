"""Small problems of attention, their operands and outputs in NumPy, and checks of a family."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from tvmopt.device.cuda import CudaArch
from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.kernels.attention.function import attention_function
from tvmopt.kernels.attention.problem import AXES
from tvmopt.kernels.emit import hint_from_dict
from tvmopt.kernels.first_choice import schedule_function
from tvmopt.kernels.policies import policy_of

_IN_ROWS = dict.fromkeys(("q_axes", "k_axes", "v_axes", "out_axes"), "bshd")
#: Fields of problems whose operands are ranges of the heads of a tensor: Q, K and V of one tensor,
#: K and V of one, and V beside other heads.
HEAD_RANGES = [
    {**_IN_ROWS, "batch": 2, "heads": 4, "q_heads": (0, 8), "k_heads": (4, 8), "v_heads": (6, 8)},
    {**_IN_ROWS, "batch": 2, "k_heads": (0, 4), "v_heads": (2, 4), "causal": MaskedBy.FIRST_KEY},
    {"v_heads": (3, 7), "dtype": "bfloat16", "head_size": 72},
]


def numpy_dtype(name: str) -> np.dtype:
    """Return the NumPy dtype of that name."""
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def operands(problem: AttentionProblem, seed: int = 0) -> list[np.ndarray]:
    """Return random Q, K, V and mask; a boolean mask hides a third of the keys."""
    rng = np.random.default_rng(seed)
    made = []
    for shape, dtype in problem.shapes()[:-1]:
        if dtype == "bool":
            made.append(rng.random(shape) > 0.33)
        else:
            made.append(rng.standard_normal(shape).astype(numpy_dtype(dtype)))
    return made


def attention(problem: AttentionProblem, inputs: list[np.ndarray]) -> np.ndarray:
    """Return the output in float64, with axes as ``problem.out_axes``."""
    p = problem
    q, k, v = (
        x.astype("f8").transpose([axes.index(a) for a in AXES])
        for x, axes in zip(inputs, (p.q_axes, p.k_axes, p.v_axes), strict=False)
    )
    parts = (p.q_heads or (0, 0), p.k_heads or (0, 0), p.v_heads or (0, 0))
    counts = (p.heads, p.kv_heads, p.kv_heads)
    q, k, v = (
        x[:, first : first + count]
        for x, (first, _), count in zip((q, k, v), parts, counts, strict=True)
    )
    k, v = (np.repeat(x, p.heads // p.kv_heads, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * p.scale
    if p.mask_shape is not None:
        mask = inputs[3]
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if p.causal is not MaskedBy.NOTHING:
        offset = p.keys - p.queries if p.causal is MaskedBy.LAST_KEY else 0
        last = np.arange(p.queries)[:, None] + offset
        scores = np.where(np.arange(p.keys) <= last, scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    out = weights @ v / np.where(total > 0, total, 1)
    return out.transpose([AXES.index(a) for a in p.out_axes])


def problem(**fields) -> AttentionProblem:
    """Return a small problem with these ``fields``; V has the head size of Q by default."""
    default = {
        "batch": 1, "heads": 2, "kv_heads": 2, "queries": 100, "keys": 150, "head_size": 64,
        "value_size": fields.get("head_size", 64), "dtype": "float16", "scale": 0.2,
    }  # fmt: skip
    return AttentionProblem(**{**default, **fields})


def check(problem: AttentionProblem, got: np.ndarray, want: np.ndarray) -> None:
    """Assert that an output is near the reference, for the dtype of the problem."""
    close = 2e-2 if problem.dtype == "bfloat16" else 3e-3
    np.testing.assert_allclose(got.astype("f4"), want, rtol=close, atol=close)


def with_masked_row(
    problem: AttentionProblem, mask_dtype: str
) -> tuple[list[np.ndarray], np.ndarray]:
    """Return operands whose mask hides every key from query 7, and the expected output."""
    inputs = operands(problem)
    want = attention(problem, inputs)
    inputs[3][:, :, 7] = False if mask_dtype == "bool" else np.finfo("f4").min
    # A boolean mask hides all keys; the lowest float weighs them alike.
    want[:, :, 7] = 0 if mask_dtype == "bool" else inputs[2].astype("f8").mean(2)
    return inputs, want


def assert_first_choice(problem: AttentionProblem, family: str, gpu: CudaArch) -> None:
    """Assert that a family is chosen, and that each of eight configurations is usable."""
    func = attention_function(problem)
    made = schedule_function(func, gpu)
    assert made.rule == family and made.func.attrs["tvmopt.kernel"] == family
    configs = policy_of(func, gpu).emit_config(8)
    assert len(set(configs)) == 8
    assert all(hint_from_dict(one.to_dict()) == one for one in configs)
    assert all(one.why_not(problem) is None for one in configs)
