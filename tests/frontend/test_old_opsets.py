"""Models of opset 1 to 6: converted, they give what the onnx package says; others are refused."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import tvmopt
from tests.onnx_cases.cases import small_models
from tvmopt.errors import ModelError
from tvmopt.frontend.old_opsets import at_least_opset_7
from tvmopt.frontend.operator_sets import opset

OLD = [case for case in small_models() if opset(case.model) < 7]


@pytest.mark.parametrize("case", OLD, ids=lambda case: case.name)
def test_old_models_of_the_onnx_package(case):
    newer = at_least_opset_7(case.model)
    session = ort.InferenceSession(newer.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, wanted in zip(session.run(None, case.inputs), case.outputs, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


def test_there_are_some():
    assert len(OLD) > 30


def test_a_slope_for_each_channel_compiles():
    [case] = [case for case in OLD if case.name.endswith("PReLU_2d_multiparam")]
    found = tvmopt.compile(case.model, fallback="refuse")(case.inputs)
    np.testing.assert_allclose(found[0], case.outputs[0], rtol=1e-5, atol=1e-6)


def test_newer_models_stay(conv_model):
    assert at_least_opset_7(conv_model) is conv_model


def test_what_cannot_be_converted_is_one_error(conv_model):
    old = onnx.ModelProto()
    old.CopyFrom(conv_model)
    old.opset_import[0].version = 3
    old.graph.node[0].op_type = "Nonsense"
    with pytest.raises(ModelError, match="models must be of opset 7 or later") as caught:
        at_least_opset_7(old)
    assert "\n" not in str(caught.value)


def test_a_model_without_operators_of_onnx_stays(make_model):
    """Trees of ai.onnx.ml alone need no version of the default set."""
    node = onnx.helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=0.5)
    model = make_model([node], {"x": ("float32", [2, 3])}, {"y": ("float32", [2, 3])}, {})
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("ai.onnx.ml", 1))
    assert at_least_opset_7(model) is model
