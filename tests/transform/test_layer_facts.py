"""Dtype and layout of converted layers, read from small modules."""

from __future__ import annotations

import pytest
from tvm import relax

from tvmopt.transform.layer_facts import LayerFacts, layer_facts

X = ((1, 4, 6, 6), "uint8")
W = ((8, 4, 3, 3), "int8")


def _requantise(emit, acc):
    scaled = emit(relax.op.multiply(relax.op.astype(acc, "float32"), relax.const(0.1, "float32")))
    return emit(relax.op.astype(relax.op.clip(emit(relax.op.round(scaled)), 0, 255), "uint8"))


def _conv(emit, x, w, **attrs):
    return emit(relax.op.nn.conv2d(x, w, **attrs))


def test_float_convolution(relax_main):
    mod = relax_main(
        lambda emit, x, w: emit(relax.op.nn.relu(_conv(emit, x, w))),
        x=((1, 4, 6, 6), "float32"),
        w=((8, 4, 3, 3), "float32"),
    )
    size = 4 * (4 * 36 + 8 * 36 + 8 * 16)
    assert layer_facts(mod) == {0: LayerFacts("float32", "float32", "float32", "NCHW", size)}


def test_result_is_stored_after_the_requantisation(relax_main):
    mod = relax_main(
        lambda emit, x, w: _requantise(emit, _conv(emit, x, w, out_dtype="int32")), x=X, w=W
    )
    size = 4 * 36 + 8 * 36 + 8 * 16
    assert layer_facts(mod) == {0: LayerFacts("int8", "uint8", "uint8", "NCHW", size)}


def test_result_that_two_operators_read(relax_main):
    def body(emit, x, w):
        acc = _conv(emit, x, w, out_dtype="int32")
        real = emit(relax.op.astype(acc, "float32"))
        pooled = emit(relax.op.mean(real, [2, 3]))
        quantised = emit(relax.op.astype(relax.op.mean(_requantise(emit, acc), [2, 3]), "float32"))
        return emit(relax.op.add(pooled, quantised))

    assert layer_facts(relax_main(body, x=X, w=W))[0].output_dtype == "float32/uint8"


def test_both_users_elementwise(relax_main):
    """x * sigmoid(x) after a convolution is one kernel: only its result is stored."""

    def body(emit, x, w):
        real = emit(relax.op.astype(_conv(emit, x, w, out_dtype="int32"), "float32"))
        swish = emit(relax.op.multiply(real, emit(relax.op.sigmoid(real))))
        return _requantise(emit, swish)

    assert layer_facts(relax_main(body, x=X, w=W))[0].output_dtype == "uint8"


@pytest.mark.parametrize(
    ("layout", "kernel", "shape", "weight"),
    [("NHWC", "HWIO", (1, 6, 6, 4), (3, 3, 4, 8)), ("HWNC", "HWOI", (6, 6, 1, 4), (3, 3, 8, 4))],
)
def test_layout(relax_main, layout, kernel, shape, weight):
    mod = relax_main(
        lambda emit, x, w: _conv(emit, x, w, data_layout=layout, kernel_layout=kernel),
        x=(shape, "float16"),
        w=(weight, "float16"),
    )
    facts = layer_facts(mod)[0]
    assert (facts.layout, facts.dtype) == (layout, "float16")


def test_matmul_has_no_layout(relax_main):
    mod = relax_main(lambda emit, x: emit(relax.op.matmul(x, x)), x=((4, 4), "float32"))
    assert layer_facts(mod)[0].layout == ""
