"""Tests of ``benchmarks.cpu_int8``: model table, kernel table, and time per operator class."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks import cpu_int8, int8_kernels, int8_profile, peers
from benchmarks.low_precision import cosine, read
from benchmarks.product_conversion import product_conversion
from tvmopt.device.target import resolve_target

from .folded import graph


@pytest.fixture(autouse=True)
def _threads_stay(monkeypatch):
    monkeypatch.setattr(peers, "set_threads", lambda threads: None)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    node = helper.make_node("Conv", ["x", "w"], ["c"], pads=(1, 1, 1, 1))
    relu = helper.make_node("Relu", ["c"], ["y"])
    model = graph([node, relu], {"x": (1, 8, 6, 6)}, ["y"], {"w": (16, 8, 3, 3)})
    model.ir_version = 8
    path = tmp_path_factory.mktemp("model") / "tiny.onnx"
    onnx.save_model(model, path)
    return path


def test_a_model_runs_in_every_dtype(model_path, tmp_path, capsys):
    file = tmp_path / "rows.json"
    options = ["--model", str(model_path), "--threads", "1", "--seconds", "0.2"]
    assert cpu_int8.main([*options, "--json", str(file)]) == 0
    [row] = json.loads(file.read_text())["rows"]
    assert {"ours float32", "ours bfloat16", "ours int8", "onnxruntime"} <= set(row["timings"])
    assert row["cosines"]["ours int8"] > 0.99 and row["cosines"]["ours bfloat16"] > 0.999
    assert "| tiny" in capsys.readouterr().out


def test_a_wrong_result_is_no_success():
    row = cpu_int8.DtypeRow("x", cosines={"ours int8": 0.5, "openvino int8": 0.1})
    assert not row.right
    assert cpu_int8.DtypeRow("x", cosines={"ours int8": 0.9, "openvino int8": 0.1}).right


def test_cosine_is_the_smallest_of_the_outputs():
    a, b = np.array([1.0, 0.0]), np.array([1.0, 1.0])
    assert cosine([a, a], [a, b]) == pytest.approx(0.5**0.5)
    assert cosine([0 * a], [0 * a]) == 1.0 and cosine([a], [0 * a]) == 0.0


@pytest.mark.slow
def test_kernels_are_checked_and_compared(tmp_path, monkeypatch, capsys):
    tiny = int8_kernels.Case("tiny", (24, 64), (64, 32))
    monkeypatch.setattr(int8_kernels, "CASES", (tiny,))
    file = tmp_path / "rows.json"
    options = ["--threads", "1", "--topk", "2", "--seconds", "0.2", "--json", str(file)]
    assert int8_kernels.main(options) == 0
    [row] = json.loads(file.read_text())["rows"]
    assert row["right"] and row["errors"]["int8"] == 0 == row["errors"]["u8u8"]
    assert "u8u8 / u8s8" in capsys.readouterr().out


def test_a_kernel_that_is_wrong_is_not_right():
    assert not int8_kernels.KernelRow("x", errors={"int8": 1.0}).right
    assert int8_kernels.KernelRow("x", errors={"int8": 0.0, "bfloat16": 1.5}).right


def test_the_profile_separates_matmuls_from_data_movement(model_path, tmp_path, capsys):
    file = tmp_path / "kernels.json"
    options = ["--model", str(model_path), "--threads", "1", "--json", str(file)]
    assert int8_profile.main(options) == 0
    kernels = json.loads(file.read_text())["kernels"]["tiny"]
    assert {k["calls"] for k in kernels} == {1}
    out = capsys.readouterr().out
    assert "1 of 1 matmuls and convolutions use a tensor instruction" in out or "0 of 1" in out
    used = [k for k in kernels if k["instructions"]]
    assert all(k["counted"] > 0 and 0 <= k["epilogue"] < 1 for k in used)


def test_shares_of_kernels_sum_to_one():
    kernels = [
        int8_profile.KernelProfile("fused_conv2d", 1, 60.0, ("vpdpbusd",), 8, 0.25),
        int8_profile.KernelProfile("fused_matmul", 1, 10.0),
        int8_profile.KernelProfile("pad", 2, 30.0),
    ]
    shares = int8_profile.summary(kernels)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["epilogue"] == pytest.approx(0.15) and shares["tensorized"] == pytest.approx(0.45)
    assert shares["vector"] == pytest.approx(0.1)


@pytest.mark.parametrize(("slower_layers", "kept"), [("float32", 1), ("convert", 0)])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_layers_keep_float32_as_in_the_product(tmp_path, dtype, slower_layers, kept):
    """A dilated window of one channel fits no dot-product instruction."""
    nodes = [
        helper.make_node(
            "Conv", ["x", "w"], ["c"], strides=(1, 64), dilations=(1, 2), name="window"
        ),
        helper.make_node("Conv", ["c", "v"], ["y"], name="dense"),
    ]
    weights = {"w": (16, 1, 1, 256), "v": (256, 16, 1, 9)}
    model = graph(nodes, {"x": (1, 1, 1, 16000)}, ["y"], weights)
    model.ir_version = 8
    path = tmp_path / "audio.onnx"
    onnx.save_model(model, path)
    target = resolve_target("sapphirerapids", 2)
    made = product_conversion(read(path, "", 1), dtype, target, slower_layers)
    assert (made.in_float32, made.layers) == (kept, 2)
