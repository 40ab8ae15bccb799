"""Fixtures: the digits classifier with its data, and a small network of varied structure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from tvmopt.evaluate.dataset import load_dataset
from tvmopt.frontend import load_onnx, parse_input_shapes, prepare
from tvmopt.frontend.reference import input_specs

EXAMPLES = Path(__file__).parents[2] / "tvmopt" / "examples"


@pytest.fixture(scope="session")
def digits():
    """Return the prepared model, calibration data and evaluation data; batches of 20."""
    shapes = parse_input_shapes("image:20x1x8x8")
    prepared = prepare(load_onnx(EXAMPLES / "digits_cnn.onnx"), shapes)
    specs = input_specs(prepared.reference)
    files = [EXAMPLES / f"digits_{part}.npz" for part in ("calibration", "eval")]
    return prepared, *(load_dataset(file, specs) for file in files)


@pytest.fixture(scope="session")
def network(make_model):
    """A network on ``x`` (1, 3, 8, 8) with residual add, concat, pooling, gating and Gemm.

    ``stem`` -> Relu -> ``left`` + stem (residual ``sum``) -> Relu -> Concat with ``right``
    -> MaxPool -> ``gated`` * Sigmoid(gated) -> ``deep`` -> average -> Flatten -> ``fc``
    """
    rng = np.random.default_rng(0)

    def weight(*shape):
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def conv(name, source, result):
        return helper.make_node(
            "Conv", [source, f"{name}.w", f"{name}.b"], [result], name, pads=[1, 1, 1, 1]
        )

    nodes = [
        conv("stem", "x", "s0"),
        helper.make_node("Relu", ["s0"], ["s"], "stem.relu"),
        conv("left", "s", "l"),
        helper.make_node("Add", ["l", "s"], ["a0"], "sum"),
        helper.make_node("Relu", ["a0"], ["a"], "sum.relu"),
        conv("right", "a", "r"),
        helper.make_node("Concat", ["a", "r"], ["c"], "cat", axis=1),
        helper.make_node("MaxPool", ["c"], ["p"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        conv("gated", "p", "g"),
        helper.make_node("Sigmoid", ["g"], ["gs"], "gate"),
        helper.make_node("Mul", ["g", "gs"], ["m"], "swish"),
        conv("deep", "m", "d"),
        helper.make_node("GlobalAveragePool", ["d"], ["v"], "average"),
        helper.make_node("Flatten", ["v"], ["f"], "flat"),
        helper.make_node("Gemm", ["f", "fc.w", "fc.b"], ["y"], "fc", transB=1),
    ]
    constants = {}
    sizes = {"stem": (4, 3), "left": (4, 4), "right": (4, 4), "gated": (6, 8), "deep": (6, 6)}
    for name, (out, inner) in sizes.items():
        constants[f"{name}.w"] = weight(out, inner, 3, 3)
        constants[f"{name}.b"] = weight(out, 1)[:, 0]
    constants["fc.w"], constants["fc.b"] = weight(5, 6), weight(5, 1)[:, 0]
    inputs, outputs = {"x": ("float32", (1, 3, 8, 8))}, {"y": ("float32", (1, 5))}
    return prepare(make_model(nodes, inputs, outputs, constants), {})


@pytest.fixture(scope="session")
def batches():
    """Six inputs for ``network``."""
    rng = np.random.default_rng(1)
    return [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]
