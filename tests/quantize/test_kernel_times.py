"""Predicted times of single layers, by the cost model of the kernels."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tvmopt.device.target import resolve_target
from tvmopt.quantize.kernel_times import kernel_times
from tvmopt.quantize.layer_times import LayerTimes

LOW = ("int8", "bfloat16", "float16")
DTYPES = ("float32", *LOW)
AMX = resolve_target("sapphirerapids", 2)


def _convolutions(*channels: int) -> onnx.ModelProto:
    """Return a chain of 1 x 1 convolutions of images of 80 x 80 pixels."""
    value, nodes, weights = helper.make_tensor_value_info, [], []
    for n, (first, last) in enumerate(itertools.pairwise(channels)):
        weight = np.full((last, first, 1, 1), 0.1, np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{n}"))
        nodes.append(helper.make_node("Conv", [f"x{n}", f"w{n}"], [f"x{n + 1}"], f"n{n}"))
    ends = (("x0", channels[0]), (f"x{len(nodes)}", channels[-1]))
    first_end, last_end = (value(n, onnx.TensorProto.FLOAT, [1, c, 80, 80]) for n, c in ends)
    graph = helper.make_graph(nodes, "chain", [first_end], [last_end], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return onnx.shape_inference.infer_shapes(model)


def _flat(layers: int) -> LayerTimes:
    """Return times in which every layer takes a second in every dtype."""
    return LayerTimes({(i, d): 1.0 for i in range(layers) for d in DTYPES}, frozenset(), 1.0)


def test_a_16_bit_float_without_dot_products_is_not_predicted_to_be_as_fast_as_one_with() -> None:
    """Sapphire Rapids has dot products of int8 and bfloat16; a roofline calls the floats equal."""
    found = kernel_times(_convolutions(48, 48, 96), LOW, _flat(2), AMX, math.inf)
    for layer in range(2):
        plain, int8, bfloat16, float16 = (found.seconds[layer, d] for d in DTYPES)
        assert int8 < bfloat16 < 0.5 * plain
        assert float16 > 2 * bfloat16
    assert found.seconds[1, "float32"] > 1.5 * found.seconds[0, "float32"]
    assert found.bandwidth > 1e9


def test_a_deadline_and_a_gpu_leave_the_roofline() -> None:
    model, before = _convolutions(8, 8), _flat(1)
    late = kernel_times(model, LOW, before, AMX, time.monotonic())
    assert late.seconds == before.seconds
    gpu = resolve_target("nvidia/nvidia-h100")
    assert kernel_times(model, LOW, before, gpu, math.inf) is before


def test_the_heaviest_layers_are_predicted_and_the_rest_is_scaled_alike(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Time ends after one of two layers, of which the second is twice as heavy."""
    clock = itertools.count()
    monkeypatch.setattr("tvmopt.quantize.kernel_times.time.monotonic", lambda: next(clock))
    model, flat = _convolutions(48, 48, 96), _flat(2).seconds
    before = LayerTimes({k: s * (1 + k[0]) for k, s in flat.items()}, frozenset(), 1.0)
    found = kernel_times(model, LOW, before, AMX, 0.5).seconds
    whole = kernel_times(model, LOW, before, AMX, math.inf).seconds
    for dtype in DTYPES:
        assert found[1, dtype] == whole[1, dtype] != whole[0, dtype]
        assert found[0, dtype] == pytest.approx(found[1, dtype] / 2)


def test_a_layer_of_unknown_work_is_left_out() -> None:
    nothing = LayerTimes({}, frozenset(), 1.0)
    assert not kernel_times(_convolutions(8, 8), LOW, nothing, AMX, math.inf).seconds


@pytest.mark.parametrize("broken", ["NoSuchOperator", "Conv"])
def test_a_model_that_is_not_imported_keeps_the_roofline(broken: str) -> None:
    """The conversion says what is wrong with it; the second one lacks its weight."""
    model, before = _convolutions(8, 8), _flat(1)
    model.graph.node[0].op_type = broken
    if broken == "Conv":
        del model.graph.initializer[:]
    assert kernel_times(model, LOW, before, AMX, math.inf).seconds == before.seconds
