"""The convert stage with other layouts and dtypes: its artifacts and its errors."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt.compare import cosine
from tvmopt.config import CalibrateConfig, ConvertConfig, SensitivityConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import AccuracyError, ConfigError
from tvmopt.frontend.reference import Reference
from tvmopt.quantize import Sensitivity
from tvmopt.quantize.dtype_map import DtypeMap
from tvmopt.quantize.report import LayerCost
from tvmopt.runtime.metadata import GOLDEN_FILE
from tvmopt.stages import convert_module
from tvmopt.stages.calibrate import calibrate, read_ranges
from tvmopt.stages.check import compile_for_check
from tvmopt.stages.convert import convert
from tvmopt.stages.module_files import QUANTIZED_FILE, REFERENCE_FILE, read_module
from tvmopt.stages.non_finite import NON_FINITE_TAG
from tvmopt.stages.sensitivity import read_proposal, read_sensitivity, sensitivity
from tvmopt.stages.signature import Signature

TARGET = resolve_target("host", 1).to_dict()


def _quiet(done, total, text):
    pass


@pytest.fixture(scope="module")
def network(make_model):
    """Three convolutions, a residual add, and a Gemm; weights scaled by fan-in."""
    rng = np.random.default_rng(0)

    def weight(*shape):
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu0"),
        helper.make_node("Conv", ["b", "w1"], ["c"], name="left", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["d"], name="relu1"),
        helper.make_node("Conv", ["d", "w2"], ["e"], name="right"),
        helper.make_node("Add", ["e", "b"], ["f"], name="sum"),
        helper.make_node("GlobalAveragePool", ["f"], ["p"], name="mean"),
        helper.make_node("Flatten", ["p"], ["g"], name="flatten"),
        helper.make_node("Gemm", ["g", "w3"], ["y"], name="fc", transB=1),
    ]
    constants = {
        "w0": weight(16, 3, 3, 3),
        "w1": weight(16, 16, 3, 3),
        "w2": weight(16, 16, 1, 1),
        "w3": weight(5, 16),
    }
    inputs, outputs = {"x": ("float32", [1, 3, 8, 8])}, {"y": ("float32", [1, 5])}
    return make_model(nodes, inputs, outputs, constants)


@pytest.fixture
def run(tmp_path, monkeypatch, network):
    """Convert a model, with the stages before it; return the result and the folder."""
    monkeypatch.setenv("TVM_NUM_THREADS", os.environ.get("TVM_NUM_THREADS", "1"))

    def convert_model(dtype, layout="NCHW", skip="", model=network, data=None, chosen=None, **how):
        path = tmp_path / "model.onnx"
        onnx.save(model, str(path))
        if data is None:
            data = np.random.default_rng(4).standard_normal((40, 3, 8, 8)).astype(np.float32)
        np.savez(tmp_path / "data.npz", x=data)
        data_path = tmp_path / "data.npz"
        folders = [tmp_path / name for name in ("calibrated", "sensitive", "out")]
        for folder in folders:
            folder.mkdir()
        calibrated, sensitive, out = folders
        calibrate(CalibrateConfig(""), path, calibrated, _quiet, data_path)
        if chosen is not None:
            _write_chosen(sensitive, chosen)
        if skip == "auto":
            sensitivity(
                SensitivityConfig("", TARGET, (dtype,), sensitivity_time=20),
                path, sensitive, _quiet, data_path, calibrated,
            )  # fmt: skip
        config = ConvertConfig("", TARGET, layout=layout, dtype=dtype, skip_layers=skip, **how)
        return convert(config, path, out, _quiet, data_path, calibrated, sensitive), out

    return convert_model


def _write_chosen(folder, dtypes):
    """Write what the sensitivity stage leaves when it has chosen dtypes by layer index."""
    costs = tuple(
        LayerCost(index, name, "Conv", dtype, "measured")
        for index, name in enumerate(("stem", "left", "right", "fc"))
        for dtype in ("int8", "bfloat16")
    )
    chosen = DtypeMap(tuple(dtypes), tuple(dtypes.values()), 1.0, 0.0, 1.0, None, 0.0, 1, True)
    found = Sensitivity(("int8", "bfloat16"), costs, (), 1, 1.0, {}, (), (chosen,))
    (folder / "sensitivity.json").write_text(json.dumps(found.to_dict()))


def _layers(folder):
    with (folder / "layers.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.sample(1)
@pytest.mark.parametrize("quantization", ["u8s8", "s8s8"])
def test_int8_layers_hand_bytes_to_each_other(run, quantization):
    result, out = run("int8", quantization=quantization)
    stored = "uint8" if quantization == "u8s8" else "int8"
    rows = _layers(out)
    assert [row["dtype"] for row in rows] == ["int8"] * 4
    assert [row["input_dtype"] for row in rows] == [stored] * 4
    # The first and the third result are added in float32; layers read the first one, too.
    both = f"float32/{stored}"
    assert [row["output_dtype"] for row in rows[:3]] == [both, stored, "float32"]
    assert [row["skipped"] for row in rows] == ["False"] * 4
    assert "int8: 4 of 4 layers" in result.changed
    assert result.metrics["cosine_vs_float"] > 0.99
    kinds = {node.op_type for node in onnx.load(str(out / QUANTIZED_FILE)).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds


@pytest.mark.sample(1)
@pytest.mark.parametrize(("parameter", "layout"), [("skip", "NCHW"), ("keep_dtype", "NHWC")])
def test_layers_that_keep_their_dtype_take_the_layout(run, parameter, layout):
    _, out = run("int8", "NHWC", **{parameter: "1"})
    rows = _layers(out)
    assert [row["dtype"] for row in rows] == ["int8", "float32", "int8", "int8"]
    assert [row["layout"] for row in rows[:3]] == ["NHWC", layout, "NHWC"]
    assert (rows[1]["skipped"], rows[1]["reason"].partition(":")[0]) == (
        "True", {"skip": "skip_layers"}.get(parameter, parameter),
    )  # fmt: skip


def test_patterns_that_keep_a_dtype_must_match(run):
    with pytest.raises(ConfigError, match="keep_dtype must match layers, but 'nothing' matches"):
        run("int8", keep_dtype="nothing")


def test_calibration_and_evaluation_share_no_sample(run, tmp_path, network):
    """Samples outside of the calibration split are huge, and do not affect the ranges."""
    from tvmopt.evaluate.dataset import Dataset
    from tvmopt.runtime.metadata import TensorSpec

    spec = TensorSpec("x", (1, 3, 8, 8), "float32")
    data = np.random.default_rng(4).standard_normal((40, 3, 8, 8)).astype(np.float32)
    index = np.arange(40, dtype=np.float32).reshape(40, 1, 1, 1) * np.ones((1, 3, 8, 8), "float32")
    parts = Dataset((spec,), {"x": index}, None, stacked=False)
    seen = parts.split("calibrate").arrays["x"][:, 0, 0, 0].astype(int)
    others = np.setdiff1d(np.arange(40), seen)
    assert len(seen) == 8
    data[others] *= 1000
    run("int8", data=data)
    low, high = read_ranges(tmp_path / "calibrated").tensors["x"]
    assert -10 < low < high < 10


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_floats(run, dtype):
    result, out = run(dtype, "NHWC", skip="0")
    rows = _layers(out)
    assert [row["dtype"] for row in rows] == ["float32", dtype, dtype, dtype]
    assert [row["layout"] for row in rows] == ["NCHW", "NHWC", "NHWC", ""]
    # A mean, which stays float32, reads the third layer.
    assert [row["output_dtype"] for row in rows] == [dtype, dtype, "float32", "float32"]
    assert rows[0]["reason"] == "skip_layers: 0"
    assert result.metrics["layers_skipped"] == 1
    assert result.metrics["layout_changes"] <= 2  # the stem's result, and its 16-bit twin
    with np.load(out / GOLDEN_FILE) as golden:
        want = Reference(str(out / REFERENCE_FILE))({"x": golden["input_0"]})[0]
        assert cosine(golden["output_0"], want) > 0.999
        assert not np.array_equal(golden["output_0"], want)  # its own results, not the reference
    assert Signature.read(out).min_cosine == {"float16": 0.999, "bfloat16": 0.9}[dtype]


def test_layer_that_cannot_take_the_layout_says_why(run):
    _, out = run("float32", "NCHW16c")
    rows = _layers(out)
    assert [row["layout"] for row in rows] == ["NCHW", "NCHW16c", "NCHW16c", ""]
    assert rows[0]["reason"] == "layout: 3 input channels are not a multiple of 16"
    with (out / "layout_changes.csv").open(newline="") as file:
        (change,) = csv.DictReader(file)
    assert (change["source"], change["target"]) == ("NCHW", "NCHW16c")
    assert int(change["bytes"]) == 4 * 16 * 64


@pytest.mark.slow  # tracking/test_conversion.py has dtype auto
def test_sensitivity_proposes_what_auto_skips(run, tmp_path):
    _, out = run("int8", skip="auto")
    proposed = read_proposal(tmp_path / "sensitive", "int8")
    skipped = [int(row["index"]) for row in _layers(out) if row["skipped"] == "True"]
    assert skipped == sorted(proposed)
    assert (tmp_path / "sensitive" / "sensitivity.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "sensitive" / "skip_sets.csv").open(newline="") as file:
        assert {row["dtype"] for row in csv.DictReader(file)} == {"int8"}


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_proposed_layers_keep_their_number_format_but_not_their_layout(run, monkeypatch, dtype):
    monkeypatch.setattr("tvmopt.stages.layer_dtypes.read_proposal", lambda folder, dtype: (1, 3))
    _, out = run(dtype, layout="NHWC", skip="auto,2")
    rows = _layers(out)
    assert [row["dtype"] for row in rows] == [dtype, "float32", "float32", "float32"]
    assert [row["layout"] for row in rows] == ["NHWC", "NHWC", "NCHW", ""]
    assert [row["reason"] for row in rows] == [
        "",
        "skip_layers: auto (sensitivity)",
        "skip_layers: 2",
        "skip_layers: auto (sensitivity)",
    ]


def test_model_that_came_quantised_needs_no_calibration(run, tmp_path):
    _, out = run("int8")
    model = onnx.load(str(out / QUANTIZED_FILE))
    again = tmp_path / "again"
    again.mkdir()
    onnx.save(model, str(tmp_path / "quantised.onnx"))
    convert(ConvertConfig("", TARGET), tmp_path / "quantised.onnx", again, _quiet)
    assert [row["dtype"] for row in _layers(again)] == ["int8"] * 4
    assert not (again / QUANTIZED_FILE).exists()


def test_int8_maps_nan_to_a_number_and_says_so(run):
    result, out = run("int8")
    assert result.tags[NON_FINITE_TAG] == "int8: NaN becomes a number"
    assert "non-finite: int8 maps NaN to a number" in result.changed
    compiled = compile_for_check(read_module(out), resolve_target("host", 1))
    for value in (np.nan, np.inf, -np.inf):
        [got] = compiled([np.full((1, 3, 8, 8), value, np.float32)])
        assert np.isfinite(got).all()


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        ("int8", "dtype=int8 needs the ranges of the calibrate stage"),
        ("auto", "dtype=auto needs the output of the sensitivity stage"),
    ],
)
def test_conversion_without_what_it_needs(tmp_path, network, dtype, message):
    onnx.save(network, str(tmp_path / "model.onnx"))
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=message):
        convert(
            ConvertConfig("", TARGET, dtype=dtype),
            tmp_path / "model.onnx", tmp_path / "out", _quiet,
        )  # fmt: skip


def test_first_bad_layer_is_named_when_numbers_overflow(run, make_model, network):
    """The second layer's results exceed 65504, the largest float16."""
    model = onnx.ModelProto()
    model.CopyFrom(network)
    for constant in model.graph.initializer:
        if constant.name == "w1":
            values = onnx.numpy_helper.to_array(constant) * np.float32(6e4)
            constant.CopyFrom(onnx.numpy_helper.from_array(values, "w1"))
    with pytest.raises(AccuracyError) as caught:
        run("float16", model=model)
    message = str(caught.value)
    assert "the conversion to float16 in NCHW must follow the float model" in message
    assert "the first bad layer is 2 ('right', Conv)" in message
    assert "skip it with skip_layers=2" in message


def test_first_bad_layer_is_named_when_a_pass_is_wrong(run, monkeypatch):
    """A broken conversion drops a weight of one layer."""
    real = convert_module.convert_module

    def forgetful(mod, **how):
        import tvm
        from tvm.relax.expr_functor import PyExprMutator, mutator

        @mutator
        class Forget(PyExprMutator):
            def visit_generic_const_(self, op):
                if tuple(op.value.shape) == (16, 16, 1, 1):
                    return tvm.relax.const(np.zeros((16, 16, 1, 1), np.float32))
                return op

        found = real(mod, **how)
        forget = Forget(found.mod)
        for var, func in found.mod.functions_items():
            if isinstance(func, tvm.relax.Function):
                forget.builder_.update_func(var, forget.visit_expr(func))
        return convert_module.Conversion(forget.builder_.get(), found.kept, found.layout_changes)

    monkeypatch.setattr(convert_module, "convert_module", forgetful)
    with pytest.raises(AccuracyError, match=r"first bad layer is 2 \('right', Conv\)"):
        run("float32", fallback="refuse")


def test_skip_pattern_that_matches_nothing(run):
    with pytest.raises(ConfigError, match="skip_layers must match layers, but 'conv9'"):
        run("float16", skip="conv9")


@pytest.mark.sample(1)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_auto_gives_each_layer_its_dtype(run, layout):
    chosen = {0: "int8", 1: "bfloat16", 3: "int8"}
    result, out = run("auto", layout, chosen=chosen)
    rows = _layers(out)
    assert [row["dtype"] for row in rows] == ["int8", "bfloat16", "float32", "int8"]
    assert [row["reason"] for row in rows] == ["", "", "dtype: auto (accuracy or time)", ""]
    assert result.tags["tvmopt.dtype"] == "int8"
    assert "bfloat16: 1, int8: 2 of 4 layers" in result.changed
    assert Signature.read(out).dtype == "int8"
    with np.load(out / GOLDEN_FILE) as golden:
        want = Reference(str(out / REFERENCE_FILE))({"x": golden["input_0"]})[0]
        assert 0.99 < cosine(golden["output_0"], want) < 1


def test_auto_keeps_the_layers_that_the_user_skips(run):
    _, out = run("auto", chosen=dict.fromkeys(range(4), "int8"), skip="left")
    assert [row["dtype"] for row in _layers(out)] == ["int8", "float32", "int8", "int8"]
    assert _layers(out)[1]["reason"] == "skip_layers: left"


@pytest.mark.sample(1)
@pytest.mark.parametrize("first", ["int8", "bfloat16"])
def test_layers_may_have_two_16_bit_floats(run, first):
    """With int8 layers and without: the second 16-bit float is of single layers."""
    chosen = {0: first, 1: "float16", 2: "bfloat16", 3: first}
    result, out = run("auto", chosen=chosen)
    assert result.tags["tvmopt.dtype"] == first
    rows = _layers(out)
    assert [row["dtype"] for row in rows] == [first, "float16", "bfloat16", first]
    assert [row["reason"] for row in rows] == [""] * 4
    assert result.metrics["cosine_vs_float"] > 0.99


def test_auto_without_int8_is_a_16_bit_conversion(run):
    result, out = run("auto", chosen={1: "bfloat16", 2: "bfloat16"})
    assert result.tags["tvmopt.dtype"] == "bfloat16"
    assert [row["dtype"] for row in _layers(out)] == ["float32", "bfloat16", "bfloat16", "float32"]
    assert not (out / QUANTIZED_FILE).exists()


def test_auto_may_leave_all_layers_in_float32(run):
    result, out = run("auto", chosen={})
    assert result.tags["tvmopt.dtype"] == "float32"
    assert [row["dtype"] for row in _layers(out)] == ["float32"] * 4


@pytest.mark.slow  # as the quantised model above
def test_auto_of_a_quantised_model_is_its_own_dtypes(run, tmp_path):
    _, out = run("int8")
    (tmp_path / "again").mkdir()
    result = convert(
        ConvertConfig("", TARGET, dtype="auto"),
        out / QUANTIZED_FILE, tmp_path / "again", _quiet,
    )  # fmt: skip
    assert result.tags["tvmopt.dtype"] == "float32"
    assert [row["dtype"] for row in _layers(tmp_path / "again")] == ["int8"] * 4


def test_sensitivity_stage_chooses_dtypes(run, tmp_path, network):
    run("float32")
    (tmp_path / "chosen").mkdir()
    result = sensitivity(
        SensitivityConfig(
            "", TARGET, ("int8", "bfloat16"), layer_dtypes=True, sensitivity_time=20
        ),
        tmp_path / "model.onnx", tmp_path / "chosen", _quiet, tmp_path / "data.npz",
        tmp_path / "calibrated",
    )  # fmt: skip
    found = read_sensitivity(tmp_path / "chosen")
    by_layer = found.chosen_map.by_layer
    assert result.metrics["layers_int8"] == list(by_layer.values()).count("int8")
    chosen = found.chosen_map
    assert result.metrics["predicted_cosine_loss_auto"] == chosen.predicted_loss
    assert chosen.mean_loss is None or (
        result.metrics["mean_cosine_loss_auto"]
        == chosen.mean_loss
        < result.metrics["bound_cosine_loss_auto"]
    )
    assert result.changed[0].startswith("dtypes: of 4 layers ")
    with (tmp_path / "chosen" / "dtype_maps.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == len(found.dtype_maps)
    assert not (tmp_path / "chosen" / "skip_sets.csv").exists()
