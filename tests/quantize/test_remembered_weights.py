"""Weights that are quantized once: the same numbers as ONNX Runtime's quantizer."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tvmopt.frontend import prepare
from tvmopt.quantize import Quantizer, Scheme, collect_ranges
from tvmopt.quantize import remembered_weights as module


@pytest.mark.parametrize("scheme", [Scheme(), Scheme("s8s8"), Scheme(per_channel=False)])
def test_equal_to_onnx_runtime(make_model, monkeypatch, scheme) -> None:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], "first"),
        helper.make_node("ConvTranspose", ["a", "w1"], ["t"], "transposed"),
        helper.make_node("Flatten", ["t"], ["f"], "flatten"),
        helper.make_node("MatMul", ["f", "w2"], ["m"], "matmul"),
        helper.make_node("Gemm", ["m", "w3", "b3"], ["y"], "last", transB=1),
    ]
    constants = {
        "w0": rng.standard_normal((4, 3, 3, 3)), "b0": rng.standard_normal(4),
        "w1": rng.standard_normal((4, 2, 2, 2)), "w2": rng.standard_normal((98, 5)),
        "w3": rng.standard_normal((6, 5)), "b3": rng.standard_normal(6),
    }  # fmt: skip
    constants["w0"][1] = 0  # a channel without a scale
    constants = {name: value.astype(np.float32) for name, value in constants.items()}
    inputs, outputs = {"x": ("float32", (1, 3, 8, 8))}, {"y": ("float32", (1, 6))}
    model = prepare(make_model(nodes, inputs, outputs, constants), {}).model
    ranges = collect_ranges(
        model, [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    )
    sets = [(), ("first",), ("matmul", "last"), ()]
    quantizer = Quantizer(model, ranges, scheme)
    got = [quantizer(skipped).SerializeToString() for skipped in sets]

    class Theirs(module.QDQQuantizer):
        remembered = None

    monkeypatch.setattr(module, "RememberingQuantizer", Theirs)
    want = [Quantizer(model, ranges, scheme)(skipped).SerializeToString() for skipped in sets]
    assert got == want


def test_each_weight_is_quantized_once(make_model, monkeypatch) -> None:
    calls = []
    original = module._quantised
    monkeypatch.setattr(module, "_quantised", lambda *a: calls.append(a) or original(*a))
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "first"),
        helper.make_node("Conv", ["a", "v"], ["y"], "second"),
    ]
    constants = {k: np.ones((4, 4, 1, 1), np.float32) for k in "wv"}
    tensor = ("float32", (1, 4, 4, 4))
    model = prepare(make_model(nodes, {"x": tensor}, {"y": tensor}, constants), {}).model
    ranges = collect_ranges(model, [{"x": np.ones((1, 4, 4, 4), np.float32)}])
    quantizer = Quantizer(model, ranges, Scheme())
    for skipped in ((), ("first",), ()):
        quantizer(skipped)
    assert len(calls) == 2
