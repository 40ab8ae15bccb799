"""The attention kernel for CPUs: NumPy's results, for drawn shapes, axes, masks and blockings."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.kernels.cpu.harness import ARCH, NARROW
from tvmopt.device.target import resolve_target
from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.kernels.attention.problem import AXES
from tvmopt.kernels.cpu.attention import (
    AttentionTiling,
    attention_kernel,
    attention_tiling,
    pays,
)
from tvmopt.kernels.cpu.attention.tiling import balanced
from tvmopt.kernels.cpu.finish import finish_function
from tvmopt.transform.cpu_pipeline import CPU_PIPELINE

_PLAIN = AttentionProblem(2, 4, 2, 19, 23, 20, 12, "float32", 0.3)


def _expected(p: AttentionProblem, operands: list[np.ndarray]) -> np.ndarray:
    q, k, v = (
        np.transpose(x, [axes.index(a) for a in AXES]).astype("float64")
        for x, axes in zip(operands, (p.q_axes, p.k_axes, p.v_axes), strict=False)
    )
    k, v = (np.repeat(x, p.heads // p.kv_heads, 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * p.scale
    for mask in operands[3:]:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    if p.causal is not MaskedBy.NOTHING:
        behind = 0 if p.causal is MaskedBy.FIRST_KEY else p.keys - p.queries
        scores = np.where(np.tri(p.queries, p.keys, behind, dtype=bool), scores, -np.inf)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = weights.sum(-1, keepdims=True)
    out = weights @ v / np.where(total == 0, 1, total)
    return np.transpose(out, [AXES.index(a) for a in p.out_axes])


def _operands(p: AttentionProblem, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [
        rng.random(shape) > 0.4 if dtype == "bool" else rng.standard_normal(shape).astype(dtype)
        for shape, dtype in p.shapes()[:-1]
    ]


def _run(p: AttentionProblem, operands: list[np.ndarray], tiling: AttentionTiling) -> np.ndarray:
    target = resolve_target("host", 2)
    kernel = finish_function(attention_kernel(p, tiling)).with_attr("global_symbol", "main")
    module = tvm.IRModule({"main": kernel})
    built = tvm.tirx.build(module, target=target.to_tvm(), pipeline=CPU_PIPELINE)
    shape, dtype = p.shapes()[-1]
    out = tvm.runtime.tensor(np.full(shape, np.nan, dtype))
    built["main"](*map(tvm.runtime.tensor, operands), out)
    return out.numpy()


def _own_tiling(p: AttentionProblem) -> AttentionTiling:
    return attention_tiling(p, resolve_target("host", 2).arch())


@st.composite
def _cases(draw) -> tuple[AttentionProblem, AttentionTiling]:
    kv_heads, shared, queries, keys = (draw(st.integers(1, most)) for most in (2, 3, 40, 70))
    batch, heads = draw(st.integers(1, 2)), kv_heads * shared
    masked = draw(st.sampled_from(["", "bool", "float32"]))
    wide = [draw(st.sampled_from([1, e])) for e in (batch, heads, queries)]
    problem = AttentionProblem(
        batch, heads, kv_heads, queries, keys,
        draw(st.integers(1, 40)), draw(st.integers(1, 40)), "float32",
        draw(st.sampled_from([1.0, 0.125])), draw(st.sampled_from(list(MaskedBy))),
        (*wide, keys) if masked else None, masked,
        *("".join(draw(st.permutations(AXES))) for _ in range(4)),
    )  # fmt: skip
    lanes = max(n for n in (1, 2, 4, 8, 16) if n <= queries and n <= draw(st.sampled_from([8, 16])))
    vectors = draw(st.integers(1, min(3, queries // lanes)))
    rows, block = draw(st.integers(1, 7)), draw(st.sampled_from([5, 16, 64]))
    return problem, AttentionTiling(lanes, vectors, rows, block)


@settings(
    max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
@given(_cases())
def test_numbers(case: tuple[AttentionProblem, AttentionTiling]) -> None:
    problem, tiling = case
    operands = _operands(problem)
    got = _run(problem, operands, tiling)
    np.testing.assert_allclose(got, _expected(problem, operands), rtol=1e-4, atol=2e-5)


def test_half_floats_are_widened() -> None:
    problem = dataclasses.replace(_PLAIN, dtype="float16")
    operands = _operands(problem)
    got = _run(problem, operands, _own_tiling(problem))
    np.testing.assert_allclose(got, _expected(problem, operands), rtol=1e-3, atol=1e-3)


@pytest.mark.sample(1)
@pytest.mark.parametrize("masked", ["bool", "float32"])
def test_query_that_sees_no_key_gives_zeros(masked: str) -> None:
    problem = dataclasses.replace(_PLAIN, mask_shape=(1, 1, 19, 23), mask_dtype=masked)
    operands = _operands(problem)
    operands[3][:, :, 5] = False if masked == "bool" else -np.inf
    got = _run(problem, operands, _own_tiling(problem))
    assert (got[:, :, 5] == 0).all()
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, _expected(problem, operands), rtol=1e-5, atol=2e-6)


def test_lowest_mask_of_a_whole_row_gives_the_average() -> None:
    problem = dataclasses.replace(_PLAIN, mask_shape=(1, 1, 19, 23), mask_dtype="float32")
    operands = _operands(problem)
    operands[3][:, :, 5] = np.finfo("float32").min
    got = _run(problem, operands, _own_tiling(problem))
    average = np.repeat(operands[2].mean(2), 2, 1)
    np.testing.assert_allclose(got[:, :, 5], average, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(1)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_query_spoils_its_row_only(value: float) -> None:
    operands = _operands(_PLAIN)
    operands[0][1, 2, 7, 3] = value
    got = _run(_PLAIN, operands, _own_tiling(_PLAIN))
    assert np.isnan(got[1, 2, 7]).all()
    got[1, 2, 7] = 0
    assert np.isfinite(got).all()


def test_large_scores() -> None:
    problem = dataclasses.replace(_PLAIN, scale=1000.0)
    operands = _operands(problem)
    got = _run(problem, operands, dataclasses.replace(_own_tiling(problem), key_block=5))
    np.testing.assert_allclose(got, _expected(problem, operands), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("extent", "most"), [(64, 6), (5, 12), (128, 128), (197, 128), (1, 1)])
def test_balanced_tiles(extent: int, most: int) -> None:
    tiles = balanced(extent, most)
    assert sum(count * size for count, size in tiles) == extent
    sizes = [size for _, size in tiles]
    assert max(sizes) <= most
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("arch", [ARCH, NARROW])
def test_long_sequences_pay_and_single_queries_do_not(arch) -> None:
    long = AttentionProblem(1, 12, 12, 512, 512, 64, 64, "float32", 0.125)
    assert pays(long, arch)
    assert not pays(dataclasses.replace(long, queries=1), arch)
    assert not pays(dataclasses.replace(long, dtype="bfloat16"), arch)
    assert not pays(dataclasses.replace(long, head_size=512), arch)
    tiling = attention_tiling(long, arch)
    assert tiling.rows * tiling.vectors + tiling.vectors < arch.vector_registers
