"""Bias correction with NNCF: what it gains, what it leaves alone, and how it fails."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from onnx import helper

from tvmopt.choices import QUANTIZERS
from tvmopt.config import CalibrateConfig
from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend import prepare
from tvmopt.frontend.reference import Reference
from tvmopt.nncf_import import is_installed, nncf_without_telemetry
from tvmopt.quantize import Quantizer, Ranges, Scheme, collect_ranges, correct, quantize_model
from tvmopt.quantize import correct as correct_function
from tvmopt.quantize.bias_correction import corrected_biases
from tvmopt.quantize.correct import output_error
from tvmopt.quantize.graph import Graph

needs_nncf = pytest.mark.skipif(not is_installed(), reason="NNCF is not installed")
NNCF = QUANTIZERS[1:3]
CORRECT = sys.modules[correct_function.__module__]


@pytest.fixture(scope="module")
def shifted(make_model):
    """Return a network whose small weights round to zero: ``first`` -> Relu -> ``second``.

    Each output channel has one large weight, so that the step of its scale exceeds the other
    weights. Their sum times the mean of the positive input is lost: a shift of the mean.
    """
    rng = np.random.default_rng(0)
    second = rng.uniform(0.0015, 0.0035, (8, 16, 3, 3)).astype(np.float32)
    second[:, 0, 1, 1] = 1.0
    nodes = [
        helper.make_node("Conv", ["x", "w0", "b0"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["r"], "relu"),
        helper.make_node("Conv", ["r", "w1", "b1"], ["y"], "second", pads=[1, 1, 1, 1]),
    ]
    constants = {
        "w0": (rng.standard_normal((16, 3, 3, 3)) / 5).astype(np.float32),
        "b0": rng.uniform(0.5, 1.0, 16).astype(np.float32),
        "w1": second,
        "b1": rng.uniform(0.5, 1.0, 8).astype(np.float32),
    }
    inputs, outputs = {"x": ("float32", (1, 3, 8, 8))}, {"y": ("float32", (1, 8, 8, 8))}
    model = prepare(make_model(nodes, inputs, outputs, constants), {}).model
    draws = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(24)]
    return model, draws[:16], draws[16:]


@pytest.fixture(scope="module")
def corrected(shifted):
    """Return the ranges of ``shifted`` by quantizer."""
    model, batches, _ = shifted
    ranges = collect_ranges(model, batches)
    return {
        quantizer: correct(model, ranges, batches, quantizer).ranges
        for quantizer in (QUANTIZERS if is_installed() else QUANTIZERS[:1])
    }


@needs_nncf
@pytest.mark.parametrize("quantizer", NNCF)
def test_a_shift_of_the_mean_is_undone_on_other_samples(shifted, corrected, quantizer):
    model, _, others = shifted
    before = output_error(model, corrected["onnxruntime"], others)
    after = output_error(model, corrected[quantizer], others)
    assert set(corrected[quantizer].biases) <= {"first", "second"}
    assert after < before / 4


@needs_nncf
@pytest.mark.parametrize("quantizer", NNCF)
def test_the_digits_classifier_agrees_with_the_float_model(digits, quantizer):
    prepared, calibration, evaluation = digits
    batches = [batch.inputs for batch in calibration.batches()]
    ranges = collect_ranges(prepared.model, batches)
    done = correct(prepared.model, ranges, batches, quantizer)
    exact = Reference(prepared.model)
    quantised = Reference(quantize_model(prepared.model, done.ranges, Scheme()))
    same = rows = 0
    for batch in evaluation.batches():
        got, want = (run(batch.inputs)[0].argmax(-1) for run in (quantised, exact))
        same, rows = same + np.sum(got == want), rows + len(want)
    assert same >= 0.99 * rows
    assert done.quantizer == quantizer
    assert done.line == f"biases of {len(done.ranges.biases)} layers corrected by NNCF"


@needs_nncf
@pytest.mark.parametrize("skipped", ["first", "second"])
def test_a_skipped_layer_keeps_its_weights_and_bias(shifted, corrected, skipped):
    model, _, _ = shifted
    quantizer = Quantizer(model, corrected["nncf-accurate"], Scheme())
    found, before = Graph(quantizer([skipped]).graph), Graph(model.graph)
    nodes = [next(n for n in one.nodes if n.name == skipped) for one in (found, before)]
    for got, want in zip(*(node.input[1:] for node in nodes), strict=True):
        assert found.array(got).tobytes() == before.array(want).tobytes()


@needs_nncf
def test_a_correction_stays_when_another_layer_is_skipped(shifted, corrected):
    model, _, others = shifted
    quantizers = [Quantizer(model, corrected[q], Scheme()) for q in ("onnxruntime", NNCF[1])]
    exact = Reference(model)
    errors = []
    for quantizer in quantizers:
        run = Reference(quantizer(["first"]))
        errors.append(max(np.abs(run(one)[0] - exact(one)[0]).mean() for one in others))
    assert errors[1] < errors[0] / 2


@needs_nncf
@pytest.mark.parametrize("accurate", [False, True])
def test_equal_data_gives_equal_bytes(shifted, accurate):
    model, batches, _ = shifted
    before = model.SerializeToString()
    first, second = (corrected_biases(model, batches, accurate) for _ in range(2))
    assert first and json.dumps(first) == json.dumps(second)
    assert model.SerializeToString() == before


def test_what_nncf_says_is_told(shifted, monkeypatch):
    model, batches, _ = shifted
    ranges = collect_ranges(model, batches)

    def fails(*args, **kwargs):
        raise ModelError("NNCF must be able to quantise the model, but it says: no")

    monkeypatch.setattr(CORRECT, "corrected_biases", fails)
    with pytest.raises(ModelError, match="it says: no"):
        correct(model, ranges, batches, "nncf")


@needs_nncf
def test_what_nncf_refuses_is_one_line(shifted):
    model, _, _ = shifted
    wrong = [{"x": np.zeros((1, 4, 8, 8), np.float32)}]
    with pytest.raises(ModelError, match="NNCF must be able to quantise the model, but") as found:
        corrected_biases(model, wrong, accurate=False)
    assert "\n" not in str(found.value)
    assert str(found.value).endswith("use quantizer=onnxruntime")


@needs_nncf
def test_nncf_is_silent(shifted, capsys):
    model, batches, _ = shifted
    corrected_biases(model, batches[:2], accurate=True)
    assert capsys.readouterr() == ("", "")


_NO_TRACE = """
import socket, sys
import numpy as np, onnx
def refuse(*args, **kwargs):
    raise SystemExit("the network is used")
socket.socket.connect = socket.getaddrinfo = refuse
from tvmopt.quantize.bias_correction import corrected_biases
batches = [{"x": np.full((1, 3, 8, 8), at, np.float32)} for at in range(4)]
assert corrected_biases(onnx.load(sys.argv[1]), batches, accurate=True)
assert "openvino_telemetry" not in sys.modules
"""


@needs_nncf
def test_no_telemetry_and_no_file_in_the_home_folder(shifted, tmp_path):
    """In another process: NNCF has no telemetry where pytest is imported."""
    model, home = tmp_path / "model.onnx", tmp_path / "home"
    model.write_bytes(shifted[0].SerializeToString())
    home.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _NO_TRACE, str(model)],
        env={**os.environ, "HOME": str(home)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    written = {path.relative_to(home).parts[:2] for path in home.rglob("*") if path.is_file()}
    assert written <= {(".cache", "Microsoft")}  # of ONNX Runtime, when it is imported


@needs_nncf
def test_telemetry_of_an_earlier_import_is_silenced_and_comes_back(monkeypatch):
    import nncf.telemetry.decorator as decorator

    theirs = object()
    monkeypatch.setattr(decorator, "telemetry", theirs)
    with nncf_without_telemetry():
        assert decorator.telemetry is not theirs
    assert decorator.telemetry is theirs


@pytest.mark.parametrize("quantizer", NNCF)
def test_without_the_package_one_line_says_how_to_install_it(without_nncf, quantizer):
    with pytest.raises(ConfigError) as found:
        CalibrateConfig("", quantizer=quantizer)
    assert str(found.value) == (
        f"quantizer={quantizer} needs NNCF, which is not installed; install it with "
        "pip install 'tvmopt[nncf]', or use quantizer=onnxruntime"
    )


def test_auto_needs_no_package(shifted, without_nncf):
    model, batches, others = shifted
    assert CalibrateConfig("").quantizer == "auto"
    ranges = collect_ranges(model, batches)
    done = correct(model, ranges, batches, "auto")
    assert done.quantizer == "layerwise"
    assert output_error(model, done.ranges, others) < output_error(model, ranges, others) / 4


def test_unknown_quantizer():
    with pytest.raises(ConfigError, match="quantizer must be one of auto, onnxruntime, nncf, nncf"):
        CalibrateConfig("", quantizer="openvino")


@pytest.mark.parametrize("biases", [{"second": (1.0,)}, {"relu": (1.0,)}])
def test_biases_of_another_model(shifted, biases):
    model, batches, _ = shifted
    ranges = dataclasses.replace(collect_ranges(model, batches), biases=biases)
    with pytest.raises(ConfigError, match=r"corrected biases must belong to the model .* again"):
        quantize_model(model, ranges, Scheme())


def test_round_trip_through_json():
    ranges = Ranges("minmax", None, 1, {"a": (0.0, 1.0)}, {"conv": (0.1, float(np.float32(0.3)))})
    assert Ranges.from_dict(json.loads(json.dumps(ranges.to_dict()))) == ranges
