"""Attention operators of Relax: matmuls of the same numbers and layer, found as attention."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.transform.attention.graphs import module
from tvmopt.kernels.attention import MaskedBy
from tvmopt.transform.anchors import anchors, with_layers
from tvmopt.transform.attention import DecomposeAttention
from tvmopt.transform.attention.fuse import find_attention

_Q = ((2, 5, 4, 8), "float32")
_K = ((2, 7, 4, 8), "float32")
_BIAS = ((2, 4, 5, 7), "float32")


def _module(*operands, **options) -> tvm.IRModule:
    return module(
        lambda emit, q, k, v, *bias: relax.op.nn.attention(q, k, v, *bias, **options), *operands
    )


def _expected(q, k, v, bias=0.0, scale=8**-0.5, hidden=None):
    scores = np.einsum("bshd,bthd->bhst", q, k) * scale + bias
    if hidden is not None:
        scores = np.where(hidden, -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("bhst,bthd->bshd", weights, v)


def _run(mod: tvm.IRModule, arrays) -> np.ndarray:
    vm = relax.VirtualMachine(tvm.compile(mod, "llvm"), tvm.cpu())
    return vm["main"](*map(tvm.runtime.tensor, arrays)).numpy()


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("operands", "options", "expected"),
    [
        ((_Q, _K, _K), {}, {}),
        ((_Q, _K, _K), {"scale": tvm.tirx.FloatImm("float32", 0.5)}, {"scale": 0.5}),
        ((_Q, _K, _K, _BIAS), {}, {}),
        ((_Q, _K, _K), {"causal_mask": "TopLeft"}, {"hidden": np.triu(np.ones((5, 7), bool), 1)}),
        (
            (_Q, _K, _K),
            {"causal_mask": "BottomRight"},
            {"hidden": np.triu(np.ones((5, 7), bool), 3)},
        ),
    ],
)
def test_the_numbers_are_of_attention(operands, options, expected) -> None:
    mod = DecomposeAttention()(_module(*operands, **options))
    assert "nn.attention" not in mod.script()
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape).astype(dtype) for shape, dtype in operands]
    np.testing.assert_allclose(
        _run(mod, arrays), _expected(*arrays, **expected), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("kind", "causal"), [("TopLeft", MaskedBy.FIRST_KEY), ("BottomRight", MaskedBy.LAST_KEY)]
)
def test_it_is_found_as_attention(kind, causal) -> None:
    mod = DecomposeAttention()(_module(_Q, _K, _K, causal_mask=kind))
    [call] = find_attention(mod["main"]).values()
    assert call.problem.causal is causal
    assert (call.problem.q_axes, call.problem.out_axes) == ("bshd", "bshd")


def test_both_matmuls_are_of_the_operators_layer() -> None:
    mod = with_layers(_module(_Q, _K, _K), ["encoder"], [3])
    found = anchors(DecomposeAttention()(mod))
    assert [(a.op, a.name, a.index) for a in found] == [("matmul", "encoder", 3)] * 2


def test_a_module_without_attention_is_unchanged() -> None:
    mod = module(lambda emit, x: relax.op.nn.relu(x), _Q)
    assert DecomposeAttention()(mod).same_as(mod)


def test_a_window_is_left_to_tvm() -> None:
    mod = _module(_Q, _K, _K, causal_mask="BottomRight", window_size=2)
    assert "nn.attention" in DecomposeAttention()(mod).script()
