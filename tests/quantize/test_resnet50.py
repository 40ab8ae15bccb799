"""Int8 ResNet-50: every convolution runs in integers, and passes 8-bit tensors to the next."""

from __future__ import annotations

import numpy as np
import pytest
from tvm import relax, tirx

from benchmarks.zoo_topologies import resnet
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, prepare
from tvmopt.quantize import Scheme, collect_ranges, quantize_model
from tvmopt.transform.conversion import convert_module
from tvmopt.transform.layer_facts import layer_facts
from tvmopt.transform.lower import lower


@pytest.fixture(scope="module")
def prepared():
    """The float model at 64 x 64, its layers, and the ranges of its activations."""
    model = prepare(resnet((3, 4, 6, 3), True, image_size=64), {"image": (1, 3, 64, 64)}).model
    rng = np.random.default_rng(0)
    batches = [{"image": rng.standard_normal((1, 3, 64, 64), np.float32)} for _ in range(3)]
    return model, layer_table(model), collect_ranges(model, batches, Scheme())


@pytest.mark.parametrize(
    ("layout", "skip"),
    [
        pytest.param("NCHW16c", (), marks=pytest.mark.slow),
        ("NHWC", (0, 5, 53)),
        pytest.param("NCHW", (), marks=pytest.mark.slow),
        pytest.param("NHWC", (), marks=pytest.mark.slow),
        pytest.param("NCHW", (0, 5, 53), marks=pytest.mark.slow),
        pytest.param("NCHW16c", (0, 5, 53), marks=pytest.mark.slow),
    ],
)
def test_integers_throughout(prepared, layout, skip):
    model, layers, ranges = prepared
    quantised = quantize_model(model, ranges, Scheme(), [layers[i].name for i in skip])
    converted = convert_module(
        import_onnx(quantised, layers), dtype="int8", layout=layout, skip_layers=skip
    )
    facts = layer_facts(converted.mod)
    assert sorted(facts) == list(range(54))
    for index, found in facts.items():
        if index in skip:
            assert (found.dtype, found.input_dtype) == ("float32", "float32")
        else:
            assert (found.dtype, found.input_dtype) == ("int8", "uint8")
            if not skip:  # the input of a skipped layer is stored in float32
                assert found.output_dtype == ("float32" if index == 53 else "uint8")
    assert set(converted.kept) <= {0}  # 3 channels do not fill a block of 16
    assert len(converted.layout_changes) <= (0 if layout == "NCHW" else 1 + 2 * len(skip))
    text = converted.mod.script(show_meta=False)
    assert "R.quantize" not in text
    assert "R.dequantize" not in text
    if not skip:
        _assert_bytes_are_stored(lower(converted.mod, resolve_target("host").to_tvm()))


def _assert_bytes_are_stored(lowered):
    """Every kernel with a convolution stores uint8, whatever is fused to it."""
    seen = []

    def visit(expr):
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            func = lowered[expr.args[0]]
            if isinstance(func, tirx.PrimFunc) and "conv2d" in expr.args[0].name_hint:
                seen.append(str(expr.ty.dtype))

    relax.analysis.post_order_visit(lowered["main"], visit)
    assert len(seen) == 53
    assert set(seen) == {"uint8"}
