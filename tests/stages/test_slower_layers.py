"""Conversions in which layers keep float32 since it is faster: layer table, sizes, parameters."""

from __future__ import annotations

import csv

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tvmopt.config import CalibrateConfig, ConvertConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import ConfigError
from tvmopt.skip_layers import SkipLayers
from tvmopt.stages import slower_layers
from tvmopt.stages.calibrate import calibrate
from tvmopt.stages.convert import LAYERS_FILE, convert
from tvmopt.stages.module_files import read_module


@pytest.fixture
def audio(tmp_path):
    """A model of two convolutions over sound: a dilated window of one channel, then 16 channels."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(0.1 * random.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w0", (16, 1, 1, 256)), ("w1", (32, 16, 1, 9)))
    ]
    nodes = [
        helper.make_node(
            "Conv", ["x", "w0"], ["c0"], name="window", strides=[1, 64], dilations=[1, 2]
        ),
        helper.make_node("Relu", ["c0"], ["y0"], name="relu"),
        helper.make_node("Conv", ["y0", "w1"], ["y"], name="dense"),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", onnx.TensorProto.FLOAT, ["batch", 1, 1, 16000])],
        [value("y", onnx.TensorProto.FLOAT, ["batch", 32, 1, "frames"])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path / "audio.onnx"
    onnx.save(model, str(path))
    return path


@pytest.fixture
def run(audio, tmp_path):
    """Convert the model for a CPU with AMX; return the result and the rows of the layer table."""

    def quiet(*_):
        pass

    def converted(dtype, shapes="batch=1", **how):
        out, data, ranges = tmp_path / "out", None, None
        out.mkdir()
        if dtype == "int8":
            data, ranges = tmp_path / "data.npz", tmp_path / "ranges"
            ranges.mkdir()
            inputs = np.random.default_rng(1).standard_normal((10, 1, 1, 16000))
            np.savez(data, x=inputs.astype(np.float32))
            calibrate(CalibrateConfig(shapes), audio, ranges, quiet, data)
        target = resolve_target("sapphirerapids", 2).to_dict()
        config = ConvertConfig(shapes, target, dtype=dtype, **{"layout": "NHWC"} | how)
        result = convert(config, audio, out, quiet, data, ranges)
        with (out / LAYERS_FILE).open(newline="") as file:
            return result, list(csv.DictReader(file))

    return converted


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_the_layer_table_says_which_layers_keep_float32(run, dtype):
    result, rows = run(dtype)
    assert [row["dtype"] for row in rows] == ["float32", dtype]
    assert rows[0]["reason"].startswith("slower_layers: float32 is predicted to take ")
    assert rows[0]["reason"].endswith(f"% of the time of {dtype}")
    assert rows[1]["reason"] == ""
    assert result.metrics["layers_skipped"] == 1
    assert any(line.startswith("kept: 0 window (slower_layers: ") for line in result.changed)
    assert result.metrics["cosine_vs_float"] > 0.99


def test_the_tuner_may_choose_their_layouts(run, tmp_path):
    _, rows = run("bfloat16", layout="auto")
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    attrs = read_module(tmp_path / "out")["main"].attrs
    assert list(attrs["tvmopt.free_layouts"]) == [0, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_slower_layers_can_be_converted_too(run, dtype):
    _, rows = run(dtype, slower_layers="convert")
    assert [row["dtype"] for row in rows] == [dtype, dtype]
    assert [row["reason"] for row in rows] == ["", ""]


def test_the_users_reason_stands(run):
    _, rows = run("bfloat16", keep_dtype=SkipLayers.parse("0"))
    assert [row["dtype"] for row in rows] == ["float32", "bfloat16"]
    assert "slower_layers" not in rows[0]["reason"]


def test_all_sizes_keep_the_layers_of_the_largest(run, tmp_path, monkeypatch):
    asked = []

    def found(mod, *_):
        asked.append(mod)
        return {0: "slower_layers: as the largest size"}

    monkeypatch.setattr(slower_layers, "slower_layers", found)
    _, rows = run("bfloat16", shapes="batch=2,1")
    assert len(asked) == 1
    assert rows[0]["reason"] == "slower_layers: as the largest size"
    tables = sorted((tmp_path / "out").rglob(LAYERS_FILE))
    assert len(tables) == 2
    for table in tables:
        with table.open(newline="") as file:
            assert [row["dtype"] for row in csv.DictReader(file)] == ["float32", "bfloat16"]


def test_a_wrong_value_is_an_error():
    target = resolve_target("sapphirerapids", 2).to_dict()
    with pytest.raises(ConfigError, match="slower_layers must be one of float32, convert"):
        ConvertConfig("", target, slower_layers="auto")
