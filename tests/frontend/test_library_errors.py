"""Refusals of libraries are what they are caught as; faults of program and machine are not."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper, version_converter

from tvmopt.errors import TVM_ERRORS, ModelError
from tvmopt.frontend import inferred_shapes
from tvmopt.frontend.library_errors import CONVERTER_ERRORS, ONNX_ERRORS, onnxruntime_errors
from tvmopt.frontend.reference import Reference, working_random_inputs
from tvmopt.runtime.metadata import TensorSpec

GROUPS = (TVM_ERRORS, CONVERTER_ERRORS, ONNX_ERRORS, onnxruntime_errors())


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("fault", [MemoryError, NameError, ImportError, OSError, Exception])
def test_faults_of_program_and_machine_are_no_refusals(group, fault):
    assert not issubclass(fault, group)


def test_what_the_libraries_raise(make_model):
    wrong = make_model(
        [helper.make_node("Nonsense", ["x"], ["y"])],
        {"x": ("float32", [2])}, {"y": ("float32", [2])}, {},
    )  # fmt: skip
    with pytest.raises(ONNX_ERRORS):
        onnx.checker.check_model(wrong)
    with pytest.raises(ONNX_ERRORS):
        version_converter.convert_version(wrong, 7)
    with pytest.raises(ONNX_ERRORS):
        onnx.shape_inference.infer_shapes("no model")
    with pytest.raises(ONNX_ERRORS):
        onnx.ModelProto.FromString(b"\xff\xff")
    with pytest.raises(ModelError, match="ONNX Runtime must load the model"):
        Reference(wrong)
    with pytest.raises(TVM_ERRORS):
        tvm.get_global_func("no such function")


def test_inputs_that_onnx_runtime_refuses_are_one_error(conv_model):
    spec = TensorSpec("x", (1, 1, 1, 1), "float32")
    with pytest.raises(ModelError, match="must run on random inputs"):
        working_random_inputs(Reference(conv_model), [spec], 0)


@pytest.mark.parametrize("infer", ["with_onnx_shapes", "with_inferred_shapes"])
def test_a_fault_is_no_model_without_shapes(conv_model, monkeypatch, infer):
    def fail(*_: object, **__: object) -> None:
        raise MemoryError("none left")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", fail)
    given = (conv_model,) if infer == "with_onnx_shapes" else (conv_model, None)
    with pytest.raises(MemoryError, match="none left"):
        getattr(inferred_shapes, infer)(*given)


def test_a_fault_inside_the_reference_is_not_taken_for_a_refusal(conv_model):
    def reference(_: object) -> None:
        raise MemoryError("none left")

    spec = TensorSpec("x", np.shape(np.zeros((1, 3, 8, 8))), "float32")
    with pytest.raises(MemoryError):
        working_random_inputs(reference, [spec], 0)
