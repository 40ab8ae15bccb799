"""Conversion commands: their artifacts, their shared runs, their errors."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path

import onnx
import pytest

from tests.mlflow_runs import client_of, runs_of


@pytest.fixture(scope="module")
def store(tmp_path_factory, make_store):
    """Make a store for this test."""
    folder = tmp_path_factory.mktemp("conversion")
    make_store(folder)
    return folder


def _runs(folder, query):
    return runs_of(client_of(folder), query)


def _ok(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _artifact(folder, run, name, where):
    return Path(client_of(folder).download_artifacts(run.info.run_id, name, str(where)))


@pytest.fixture(scope="module")
def int8(store, run_flow):
    """``convert`` with ``dtype=int8``, ``layout=NHWC`` and ``skip_layers=0,fc*``."""
    out = _ok(run_flow(store, "convert", dtype="int8", layout="NHWC", skip_layers="0,fc*"))
    (run,) = _runs(store, "tags.`tvmopt.stage` = 'convert'")
    return out, run


def test_int8_in_nhwc_is_logged(int8, store, tmp_path):
    out, run = int8
    assert "int8: 5 of 7 layers" in out
    assert run.info.status == "FINISHED"
    assert run.data.params["skip_layers"] == "0,fc*"
    assert run.data.tags["tvmopt.dtype"] == "int8"
    assert run.data.tags["tvmopt.layout"] == "NHWC"
    assert run.data.metrics["cosine_vs_float"] > 0.99
    assert run.data.metrics["layout_changes"] <= 2
    with _artifact(store, run, "layers.csv", tmp_path).open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["dtype"] for row in rows] == ["float32", *["int8"] * 5, "float32"]
    assert [row["layout"] for row in rows] == ["NCHW", *["NHWC"] * 5, ""]
    assert [row["reason"] for row in rows if row["skipped"] == "True"] == [
        "skip_layers: 0", "skip_layers: fc*",
    ]  # fmt: skip
    # between two integer convolutions only 8-bit tensors are stored
    assert all(row["input_dtype"] in ("uint8", "int8") for row in rows[1:6])
    assert all(row["output_dtype"] == "uint8" for row in rows[1:5])


def test_quantised_model_is_an_artifact_with_the_skipped_layers_in_float(int8, store, tmp_path):
    _, run = int8
    model = onnx.load(str(_artifact(store, run, "quantized.onnx", tmp_path)))
    made_by = {output: node for node in model.graph.node for output in node.output}
    quantised = {
        node.name: made_by[node.input[1]].op_type == "DequantizeLinear"
        for node in model.graph.node
        if node.op_type in ("Conv", "Gemm") and node.input[1] in made_by
    }
    assert set(quantised) == {
        "residual1.conv", "residual2.conv", "depthwise.conv", "pointwise.conv", "head.conv",
    }  # fmt: skip
    assert all(quantised.values())


@pytest.mark.slow  # the conversion of dtype auto below reuses it, too
def test_calibration_is_a_run_that_conversions_share(int8, store, run_flow, tmp_path):
    (calibrated,) = _runs(store, "tags.`tvmopt.stage` = 'calibrate'")
    assert calibrated.data.metrics["calibration_samples"] == 100
    ranges = json.loads(_artifact(store, calibrated, "ranges.json", tmp_path).read_text())
    assert set(ranges["tensors"]) > {"image"}
    out = _ok(run_flow(store, "convert", dtype="int8"))
    assert "calibrate          reused" in out
    assert len(_runs(store, "tags.`tvmopt.stage` = 'calibrate'")) == 1


def test_auto_measures_and_gives_each_layer_a_dtype(int8, store, run_flow, tmp_path):
    out = _ok(run_flow(store, "convert", dtype="auto", layout="NHWC"))
    assert "calibrate          reused" in out
    assert "dtypes: of 7 layers" in out
    (run,) = _runs(store, "tags.`tvmopt.stage` = 'sensitivity'")
    assert run.data.metrics["layers_int8"] <= 7
    table = _artifact(store, run, "dtype_maps.csv", tmp_path).read_text()
    assert "True" in table
    (converted,) = _runs(store, "params.dtype = 'auto' and tags.`tvmopt.stage` = 'convert'")
    assert converted.data.metrics["cosine_vs_float"] > 0.99
    again = _ok(run_flow(store, "convert", dtype="auto", layout="NHWC"))
    assert "sensitivity        reused" in again


@pytest.mark.slow
def test_sensitivity_chooses_and_main_promotes(store, mlflow_run, tmp_path):
    done = mlflow_run(store, "main", dtype="int8", layout="NHWC", skip_layers="auto", topk=3)
    out = _ok(done)
    assert "tvmopt fast int8 NHWC" in out
    assert "has alias champion" in out
    (run,) = _runs(store, "tags.`tvmopt.stage` = 'sensitivity'")
    assert run.info.status == "FINISHED"
    plot = _artifact(store, run, "sensitivity.png", tmp_path).read_bytes()
    assert plot.startswith(b"\x89PNG\r\n\x1a\n")
    (measured,) = _runs(store, "tags.`tvmopt.stage` = 'evaluate'")
    assert measured.data.metrics["accuracy_drop"] <= 0.01


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dtype": "int7"}, "dtype must be one of float32, float16, bfloat16, int8, auto, but"),
        ({"layout": "NCWH"}, r"layout must be one of auto, NCHW, NHWC, NCHW<c>c, HWNC"),
        ({"skip_layers": "conv*"}, "skip_layers must match layers, but 'conv*' matches none of"),
        (
            {"quantization": "u8u8"},
            "quantization must be one of auto, u8s8, s8s8, u8s8-pairs, but got 'u8u8'",
        ),
        ({"calibration": "max"}, "calibration must be one of minmax, entropy, percentile, but"),
        (
            {"quantizer": "openvino"},
            "quantizer must be one of auto, onnxruntime, nncf, nncf-accurate, layerwise, but got",
        ),
        ({"calibration_samples": "0"}, "calibration_samples must be at least 1, but got 0"),
    ],
)
def test_wrong_parameter_is_one_line_and_exit_code_2(refuse, params, message):
    refuse("convert", params, message)
