"""Tests of the convert stage: its artifacts, and detection of a wrong import."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

from benchmarks.tree_node_bytes import random_trees
from tvmopt import host
from tvmopt.config import ConvertConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import (
    AccuracyError,
    BuildError,
    ConfigError,
    ModelError,
    UnsupportedOperatorError,
)
from tvmopt.frontend.reference import Reference
from tvmopt.runtime.metadata import GOLDEN_FILE
from tvmopt.stages import convert_module, kept_library
from tvmopt.stages.convert import convert
from tvmopt.stages.module_files import REFERENCE_FILE, read_module
from tvmopt.stages.signature import Signature


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Convert a model; return the result and the folder."""
    monkeypatch.setenv("TVM_NUM_THREADS", os.environ.get("TVM_NUM_THREADS", "1"))

    def convert_model(model, shapes="", data=None, **how):
        onnx.save(model, str(tmp_path / "model.onnx"))
        out = tmp_path / "out"
        out.mkdir()
        path = None
        if data is not None:
            path = tmp_path / "data.npz"
            np.savez(path, **data)
        config = ConvertConfig(shapes, resolve_target("host", 1).to_dict(), **how)
        return convert(config, tmp_path / "model.onnx", out, lambda *a: None, path), out

    return convert_model


@pytest.mark.sample(1)
@pytest.mark.parametrize(("dtype", "is_checked"), [("float32", False), ("bfloat16", True)])
def test_the_check_can_be_left_out_for_float32(run, conv_model, dtype, is_checked):
    result, out = run(conv_model, dtype=dtype, is_checked=False)
    assert kept_library.path_in(out).is_file() is is_checked
    assert any(line.startswith("checked on") for line in result.changed) is is_checked
    assert (out / GOLDEN_FILE).is_file() and (out / REFERENCE_FILE).is_file()


def test_a_model_with_segments_is_checked_in_any_case(run, make_model):
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], name="relu"),
        helper.make_node("Det", ["r"], ["d"], name="det"),  # has no converter
        helper.make_node("Exp", ["d"], ["y"], name="exp"),
    ]
    model = make_model(nodes, {"x": ("float32", [3, 4, 4])}, {"y": ("float32", [3])})
    result, _ = run(model, is_checked=False)
    assert result.tags["tvmopt.fallback"].startswith("1 node(s)")
    assert any(line.startswith("checked on") for line in result.changed)


def test_signature_follows_the_graph(run, two_input_model):
    _, out = run(two_input_model)
    signature = Signature.read(out)
    assert [(s.name, s.shape, s.dtype) for s in signature.inputs] == [
        ("ids", (4,), "int64"),
        ("in/bias", (4, 8), "float32"),
    ]
    assert [(s.name, s.shape, s.dtype) for s in signature.outputs] == [
        ("y", (4, 3), "float32"),
        ("out/sum", (4, 8), "float32"),
    ]
    assert signature.random_inputs == "normal"


def test_golden_values_are_the_references(run, two_input_model):
    _, out = run(two_input_model)
    with np.load(out / GOLDEN_FILE) as golden:
        want = Reference(two_input_model)({"ids": golden["input_0"], "in/bias": golden["input_1"]})
        np.testing.assert_array_equal(golden["output_0"], want[0])
        np.testing.assert_array_equal(golden["output_1"], want[1])


def test_golden_values_are_of_the_data_when_there_is_data(run, conv_model):
    images = np.random.default_rng(9).standard_normal((3, 3, 8, 8)).astype(np.float32)
    result, out = run(conv_model, data={"x": images})
    with np.load(out / GOLDEN_FILE) as golden:
        np.testing.assert_array_equal(golden["input_0"], images[:1])
    assert any("random inputs and given inputs" in line for line in result.changed)


@pytest.mark.slow  # tests/tracking/test_main.py reuses a conversion
def test_files_can_be_used_again(run, conv_model):
    _, out = run(conv_model)
    assert isinstance(read_module(out), tvm.IRModule)
    assert onnx.load(str(out / REFERENCE_FILE)).graph.node[0].op_type == "Conv"
    rows = list(csv.DictReader((out / "layers.csv").open()))
    assert [(row["name"], row["flops"]) for row in rows] == [("conv", "27648"), ("dense", "80")]


def test_metrics(run, conv_model):
    result, _ = run(conv_model)
    assert result.metrics["layers"] == 2
    assert result.metrics["flops"] == 27648 + 80
    assert result.metrics["params_bytes"] > 4 * (8 * 27 + 8 * 5)
    assert 0 <= result.metrics["import_max_deviation"] < 1e-3
    assert json.loads(json.dumps(result.metrics)) == result.metrics


def test_dynamic_model(run, make_model):
    model = make_model(
        [helper.make_node("Relu", ["x"], ["y"])],
        {"x": ("float32", ["n", 3])},
        {"y": ("float32", ["n", 3])},
    )
    _, out = run(model, "x:5x3")
    assert Signature.read(out).outputs[0].shape == (5, 3)


def test_scalar_output(run, make_model):
    model = make_model(
        [helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)],
        {"x": ("float32", [2, 3])},
        {"y": ("float32", [])},
    )
    _, out = run(model)
    assert Signature.read(out).outputs[0].shape == ()


@pytest.fixture
def elsewhere(monkeypatch):
    """Make every target one of another machine; return its name."""
    spec = resolve_target("host")
    assert spec.missing_on_host() == ()
    monkeypatch.setattr(convert_module.TargetSpec, "missing_on_host", lambda self: ("amx",))
    return spec.device


@pytest.mark.sample(1)
@pytest.mark.parametrize("where", ["host", "elsewhere"])
def test_wrong_import_is_refused(run, conv_model, monkeypatch, request, where):
    """A kernel with wrong results must be detected, also in a model for another machine."""
    if where == "elsewhere":
        request.getfixturevalue(where)
    original = convert_module.import_with_segments

    def other_bias(model, layers, others):
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for constant in changed.graph.initializer:
            if constant.name == "b":
                values = onnx.numpy_helper.to_array(constant) + np.float32(0.5)
                constant.CopyFrom(onnx.numpy_helper.from_array(values, "b"))
        return original(changed, layers, others)

    monkeypatch.setattr(convert_module, "import_with_segments", other_bias)
    with pytest.raises(AccuracyError, match="the import on random inputs must equal ONNX Runtime"):
        run(conv_model, layout="NCHW")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_conversion_for_another_machine_is_checked_on_this_cpu(run, conv_model, elsewhere, dtype):
    result, folder = run(conv_model, dtype=dtype)
    said = f"{elsewhere} does not run on this machine: its CPU checked the conversion"
    assert result.tags["tvmopt.unchecked"].startswith(said)
    assert result.metrics["cosine_vs_float"] > 0.999
    assert result.changed[-2].startswith("checked on random inputs")
    assert result.changed[-1].startswith(f"not proven: {said}")
    assert "tvmopt.non_finite" not in result.tags
    assert not kept_library.path_in(folder).exists()


def test_what_this_cpu_cannot_compile_is_not_checked(run, conv_model, elsewhere, monkeypatch):
    def fail(*_):
        raise BuildError("no such instruction")

    monkeypatch.setattr(convert_module, "compile_for_check", fail)
    result, _ = run(conv_model, fallback="refuse")
    said = "and this machine's CPU cannot run it either: no such instruction"
    assert result.tags["tvmopt.unchecked"].endswith(said)
    assert "import_max_deviation" not in result.metrics
    assert result.changed[-1].startswith("not proven: ")


def test_data_that_does_not_fit(run, conv_model):
    with pytest.raises(ConfigError, match="data must hold N samples"):
        run(conv_model, data={"x": np.zeros((3, 5), np.float32)})


def test_data_that_the_reference_cannot_take(run, two_input_model):
    data = {"ids": np.full((3, 4), 99), "in/bias": np.zeros((3, 4, 8), np.float32)}
    with pytest.raises(ModelError, match="must run on the given data, but ONNX Runtime says"):
        run(two_input_model, data=data)


def test_outputs_that_are_no_tensors(run, make_model):
    model = make_model(
        [helper.make_node("SequenceConstruct", ["x", "x"], ["s"])], {"x": ("float32", [2])}, {}
    )
    model.graph.output.append(
        helper.make_tensor_sequence_value_info("s", onnx.TensorProto.FLOAT, None)
    )
    with pytest.raises(ModelError, match="model outputs must be tensors, but 's' is a sequence"):
        run(model)


def test_outputs_that_are_no_numbers(run, make_model):
    model = make_model(
        [helper.make_node("Cast", ["x"], ["y"], to=onnx.TensorProto.STRING)],
        {"x": ("float32", [2])},
        {},
    )
    model.graph.output.append(helper.make_tensor_value_info("y", onnx.TensorProto.STRING, [2]))
    with pytest.raises(ModelError, match="Cast 'y' makes strings of numbers"):
        run(model)


@pytest.mark.slow  # test_launch.py has the threads
def test_pool_gets_the_threads_of_the_target(run, conv_model):
    run(conv_model)
    assert os.environ["TVM_NUM_THREADS"] == "1"
    assert host.usable_cores() >= 1


def test_what_the_compiler_refuses_is_one_line(run, make_model):
    """TVM divides by the scale during lowering."""
    model = make_model(
        [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
         helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"])],
        {"x": ("float32", [1, 4])}, {"y": ("float32", [1, 4])},
        {"s": np.float32(0), "z": np.uint8(0)},
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"compiler says: .*Divide by zero; change"):
        run(model, fallback="refuse")


def test_a_retry_with_segments_does_not_hide_what_failed_first(run, conv_model, monkeypatch):
    direct = convert_module.import_with_segments

    def imported(model, layers, others):
        if others:
            raise UnsupportedOperatorError("values must have a known type, but 'v' has none")
        return direct(model, layers, others)

    def refused(*_args):
        raise BuildError("the linker must work, but it says: no space")

    monkeypatch.setattr(convert_module, "import_with_segments", imported)
    monkeypatch.setattr(convert_module, "compile_for_check", refused)
    with pytest.raises(BuildError) as caught:
        run(conv_model)
    assert str(caught.value).startswith("the linker must work, but it says: no space; tried next: ")
    assert str(caught.value).endswith("in ONNX Runtime, but values must have a known type, but "
                                      "'v' has none")  # fmt: skip


@pytest.mark.parametrize("thresholds", ["float16", "int8"])
def test_rounded_thresholds_compute_what_the_rounded_model_does(run, thresholds):
    model = random_trees(200, 6)
    for size in (model.graph.input[0], model.graph.output[0]):
        size.type.tensor_type.shape.dim[0].dim_value = 40
    result, out = run(model, thresholds=thresholds)
    assert f"thresholds of trees: {thresholds}" in result.changed
    [checked] = [line for line in result.changed if line.startswith("checked on random inputs")]
    assert "largest deviation" in checked and "with float" in checked
    assert Signature.read(out).is_rounded
    rounded = onnx.load(out / "quantized.onnx")
    with np.load(out / GOLDEN_FILE) as golden:
        want = Reference(rounded)({"x": golden["input_0"]})
        np.testing.assert_allclose(golden["output_0"], want[0], rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # converts twice
def test_a_signature_of_an_older_conversion_tells_what_is_rounded(run, conv_model):
    _, out = run(conv_model)
    path = out / "signature.json"
    stored = json.loads(path.read_text())
    assert not Signature.read(out).is_rounded
    del stored["rounds_thresholds"]
    path.write_text(json.dumps({**stored, "dtype": "int8"}))
    assert Signature.read(out).is_rounded
