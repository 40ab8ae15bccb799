"""FuseAttention: the graphs that it finds, their problems, and the graphs that it leaves."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tvm
from tvm import relax

from tests.transform.attention.graphs import bert, constant, module
from tvmopt.kernels.attention import AttentionProblem, MaskedBy
from tvmopt.kernels.attention.function import attention_function
from tvmopt.transform.anchors import anchors
from tvmopt.transform.attention import FuseAttention
from tvmopt.transform.attention.fuse import find_attention

_Q = ((2, 4, 10, 8), "float32")
_K = ((2, 4, 12, 8), "float32")
_PLAIN = AttentionProblem(2, 4, 4, 10, 12, 8, 8, "float32", 1.0)
_TRI = np.tri(10, 12, dtype=bool)


def _problems(mod: tvm.IRModule) -> list[AttentionProblem]:
    return [call.problem for call in find_attention(mod["main"]).values()]


def _attend(emit, q, k, v, change=lambda emit, scores: scores, after=lambda emit, weights: weights):
    transposed = emit(relax.op.permute_dims(k, [0, 1, 3, 2]))
    scores = change(emit, emit(relax.op.matmul(q, transposed)))
    weights = after(emit, emit(relax.op.nn.softmax(scores)))
    return relax.op.matmul(weights, v)


def _found(change=lambda emit, scores: scores, after=lambda emit, weights: weights):
    mod = module(lambda emit, q, k, v: _attend(emit, q, k, v, change, after), _Q, _K, _K)
    return _problems(mod)


def test_transposes_become_axes_and_the_module_calls_one_function() -> None:
    shape = ((1, 10, 4, 16), "float32")
    mod = module(bert, shape, shape, shape, ((1, 1, 1, 10), "float32"))
    problem = AttentionProblem(
        1, 4, 4, 10, 10, 16, 16, "float32", 0.25, MaskedBy.NOTHING, (1, 1, 1, 10), "float32",
        "bshd", "bshd", "bshd", "bshd",
    )  # fmt: skip
    fused = tvm.transform.Sequential([FuseAttention(attention_function)])(mod)
    builder = relax.BlockBuilder()
    function = builder.add_func(attention_function(problem), "attention")

    params = [relax.Var(p.name, p.ty) for p in mod["main"].params]
    attributes = {"num_input": 4, "tvmopt.layer_names": [], "tvmopt.layer_indices": []}
    with builder.function("main", params, attributes):
        with builder.dataflow():
            *qkv, mask = params
            mask = builder.emit(relax.op.reshape(mask, (1, 1, 1, 10)))
            out = relax.op.call_tir(function, [*qkv, mask], relax.TensorType(*shape))
            result = builder.emit_output(out)
        builder.emit_func_output(result)
    tvm.ir.assert_structural_equal(fused["main"], builder.get()["main"], map_free_vars=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda emit, s: emit(relax.op.multiply(s, constant(0.5))),
        lambda emit, s: emit(relax.op.multiply(constant(0.5), s)),
        lambda emit, s: emit(relax.op.divide(s, constant(np.full((1, 1, 1, 1), 2.0)))),
        lambda emit, s: emit(relax.op.astype(emit(relax.op.divide(s, constant(2.0))), "float32")),
    ],
)
def test_scale(change) -> None:
    assert _found(change) == [dataclasses.replace(_PLAIN, scale=0.5)]


def test_scale_of_both_operands() -> None:
    def body(emit, q, k, v):
        root = constant(np.float32(np.sqrt(0.125)))
        q, k = emit(relax.op.multiply(q, root)), emit(relax.op.multiply(k, root))
        return _attend(emit, q, k, v)

    [problem] = _problems(module(body, _Q, _K, _K))
    assert problem.scale == pytest.approx(0.125)
    assert dataclasses.replace(problem, scale=1.0) == _PLAIN


@pytest.mark.parametrize("hidden", [-np.inf, -1e9, float(np.finfo(np.float32).min)])
@pytest.mark.parametrize("by", ["add", "where", "inverted"])
def test_constant_causal_mask(hidden: float, by: str) -> None:
    added = np.where(_TRI, 0, hidden).astype("float32")
    change = {
        "add": lambda emit, s: emit(relax.op.add(s, constant(added))),
        "where": lambda emit, s: emit(relax.op.where(constant(_TRI, "bool"), s, constant(hidden))),
        "inverted": lambda emit, s: emit(
            relax.op.where(constant(~_TRI[None], "bool"), constant(hidden), s)
        ),
    }[by]
    assert _found(change) == [dataclasses.replace(_PLAIN, causal=MaskedBy.FIRST_KEY)]


def test_other_constant_masks_stay_operands() -> None:
    rows = np.tri(10, 12, 2, dtype=bool)
    assert _found(
        lambda emit, s: emit(relax.op.where(constant(rows, "bool"), s, constant(-np.inf)))
    ) == [dataclasses.replace(_PLAIN, causal=MaskedBy.LAST_KEY)]
    rows[3, 1] = False
    assert _found(
        lambda emit, s: emit(relax.op.where(constant(rows, "bool"), s, constant(-np.inf)))
    ) == [dataclasses.replace(_PLAIN, mask_shape=(1, 1, 10, 12), mask_dtype="bool")]
    bias = np.random.default_rng(0).standard_normal((1, 4, 10, 12)).astype("float32")
    assert _found(lambda emit, s: emit(relax.op.add(s, constant(bias)))) == [
        dataclasses.replace(_PLAIN, mask_shape=(1, 4, 10, 12), mask_dtype="float32")
    ]


@pytest.mark.parametrize(("hidden", "dtype"), [(-np.inf, "bool"), (-1e9, "float32")])
def test_mask_that_is_an_input(hidden: float, dtype: str) -> None:
    def body(emit, q, k, v, mask):
        def hide(emit, scores):
            added = emit(relax.op.where(mask, constant(0.0), constant(hidden)))
            return emit(relax.op.add(scores, added))

        return _attend(emit, q, k, v, hide)

    mod = module(body, _Q, _K, _K, ((2, 1, 1, 12), "bool"))
    assert _problems(mod) == [
        dataclasses.replace(_PLAIN, mask_shape=(2, 1, 1, 12), mask_dtype=dtype)
    ]


def test_guard_against_nan() -> None:
    def guard(emit, weights):
        return emit(relax.op.where(emit(relax.op.isnan(weights)), constant(0.0), weights))

    assert _found(after=guard) == [_PLAIN]


def test_repeated_heads() -> None:
    def body(emit, q, k, v):
        def repeated(x):
            wide = emit(relax.op.broadcast_to(emit(relax.op.expand_dims(x, 2)), (2, 2, 2, 12, 8)))
            return emit(relax.op.reshape(wide, (2, 4, 12, 8)))

        return _attend(emit, q, repeated(k), emit(relax.op.repeat(v, 2, 1)))

    shape = ((2, 2, 12, 8), "float32")
    assert _problems(module(body, _Q, shape, shape)) == [dataclasses.replace(_PLAIN, kv_heads=2)]


def test_three_axes() -> None:
    def body(emit, q, k, v):
        transposed = emit(relax.op.permute_dims(k, [1, 2, 0]))
        q = emit(relax.op.permute_dims(q, [1, 0, 2]))
        weights = emit(relax.op.nn.softmax(emit(relax.op.matmul(q, transposed))))
        out = emit(relax.op.matmul(weights, emit(relax.op.permute_dims(v, [1, 0, 2]))))
        return relax.op.permute_dims(out, [1, 0, 2])

    mod = module(body, ((10, 8, 8), "float32"), *[((12, 8, 8), "float32")] * 2)
    axes = "bshd"
    assert _problems(mod) == [
        AttentionProblem(
            1,
            8,
            8,
            10,
            12,
            8,
            8,
            "float32",
            1.0,
            MaskedBy.NOTHING,
            None,
            "",
            axes,
            axes,
            axes,
            axes,
        )
    ]


def test_half_floats_with_float32_scores() -> None:
    def body(emit, q, k, v):
        transposed = emit(relax.op.permute_dims(k, [0, 1, 3, 2]))
        scores = emit(relax.op.matmul(q, transposed, "float32"))
        weights = emit(relax.op.astype(emit(relax.op.nn.softmax(scores)), "float16"))
        out = emit(relax.op.matmul(weights, v, "float32"))
        return relax.op.astype(out, "float16")

    mod = module(body, *[(shape, "float16") for shape, _ in (_Q, _K, _K)])
    assert _problems(mod) == [dataclasses.replace(_PLAIN, dtype="float16")]


def test_scores_with_another_reader_are_left() -> None:
    def body(emit, q, k, v):
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        out = emit(relax.op.matmul(emit(relax.op.nn.softmax(scores)), v))
        return relax.Tuple([out, scores])

    assert _problems(module(body, _Q, _K, _K)) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda emit, s: emit(relax.op.tanh(s)),
        lambda emit, s: emit(
            relax.op.multiply(emit(relax.op.add(s, constant(np.ones((10, 12))))), constant(2.0))
        ),
        lambda emit, s: emit(relax.op.where(constant(_TRI, "bool"), s, constant(0.0))),
    ],
)
def test_other_scores_are_left(change) -> None:
    assert _found(change) == []


def test_other_axis_is_left() -> None:
    def body(emit, q, k, v):
        scores = emit(relax.op.matmul(q, emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
        return relax.op.matmul(emit(relax.op.nn.softmax(scores, 2)), v)

    assert _problems(module(body, _Q, _K, _K)) == []


def test_layers_that_stay_keep_their_index() -> None:
    shape = ((1, 10, 4, 16), "float32")

    def body(emit, q, k, v, mask):
        weight = constant(np.eye(16, dtype="float32"))
        out = emit(bert(emit, emit(relax.op.matmul(q, weight)), k, v, mask))
        return relax.op.matmul(out, weight)

    mod = module(body, shape, shape, shape, ((1, 1, 1, 10), "float32"))
    fused = tvm.transform.Sequential([FuseAttention(attention_function)])(mod)
    assert [anchor.index for anchor in anchors(mod)] == [0, 1, 2, 3]
    assert [anchor.index for anchor in anchors(fused)] == [0, 3]


def test_kernel_decides() -> None:
    mod = module(lambda emit, q, k, v: _attend(emit, q, k, v), _Q, _K, _K)
    left = tvm.transform.Sequential([FuseAttention(lambda problem: None)])(mod)
    tvm.ir.assert_structural_equal(left, mod)


@pytest.mark.parametrize("hidden", [-np.inf, -1e9])
def test_masked_fill_becomes_a_mask_of_the_other_sense(hidden: float) -> None:
    def body(emit, q, k, v, mask):
        def fill(emit, scores):
            return emit(relax.op.where(mask, constant(hidden), scores))

        return _attend(emit, q, k, v, fill)

    mod = module(body, _Q, _K, _K, ((1, 1, 10, 12), "bool"))
    fused = tvm.transform.Sequential([FuseAttention(attention_function)])(mod)
    text = fused["main"].script()
    assert ("logical_not" in text) == (hidden == -np.inf)
    assert "softmax" not in text
    relax.analysis.well_formed(fused)
