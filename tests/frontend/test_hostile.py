"""What is no model, or names that are no names, are refused in one line."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.load import load_onnx
from tvmopt.frontend.shapes import format_input_shapes, parse_input_shapes
from tvmopt.tracking.model_source import local_model

CONTROL = ["a\nb", "a\x1b[31mb", "a\x00b", "a\u202eb", "a\u2028b", "a\x7fb", "\r"]


def _model(**changed):
    names = {"input": "x", "output": "y", "node": "n", "domain": "", "op": "Relu", "dim": "d"}
    names |= changed
    values = {
        role: helper.make_tensor_value_info(names[role], onnx.TensorProto.FLOAT, [names["dim"]])
        for role in ("input", "output")
    }
    node = helper.make_node(
        names["op"], [names["input"]], [names["output"]], name=names["node"],
        domain=names["domain"],
    )  # fmt: skip
    return helper.make_model(
        helper.make_graph([node], "g", [values["input"]], [values["output"]]), ir_version=9
    )


def _refused(path, words):
    with pytest.raises(ModelError, match=words) as caught:
        load_onnx(path)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("role", ["input", "output", "node", "domain", "op", "dim"])
@pytest.mark.parametrize("name", CONTROL)
def test_control_characters_in_names_are_refused(role, name, tmp_path):
    onnx.save_model(_model(**{role: name}), str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", "must hold no control characters")


def test_names_in_subgraphs_are_looked_at(tmp_path):
    inner = _model(node="in\nner").graph
    outer = _model()
    outer.graph.node[0].attribute.append(helper.make_attribute("body", inner))
    onnx.save_model(outer, str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", r"a node is called 'in\\nner'")


@pytest.mark.parametrize("name", ["größe", "层", "a b", "a/b:0", "a,b", "=SUM(1)"])
def test_other_names_are_taken(name, tmp_path):
    onnx.save_model(_model(node=name, input=name), str(tmp_path / "m.onnx"))
    assert load_onnx(tmp_path / "m.onnx").graph.node[0].name == name


@pytest.mark.parametrize("ending", ["onnx", "json", "textproto", "onnxtxt", "pbtxt", "onnxjson"])
@pytest.mark.parametrize("content", [b"", b"{", b"no model", b"\xff" * 100])
def test_what_does_not_parse_is_refused_whatever_it_is_called(ending, content, tmp_path):
    path = tmp_path / f"m.{ending}"
    path.write_bytes(content)
    _refused(path, "model must")


def test_a_nul_in_external_data_is_refused(tmp_path):
    model = _model()
    tensor = onnx.numpy_helper.from_array(np.zeros(3, np.float32), "w")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="a\0b")
    model.graph.initializer.append(tensor)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    _refused(tmp_path / "m.onnx", "external tensor data must lie in a file")


@pytest.mark.timeout(20)
def test_pipes_and_devices_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.onnx")
    _refused(tmp_path / "pipe.onnx", "must be a regular file")
    _refused("/dev/zero", "must be a regular file")


def test_paths_that_lead_nowhere_are_one_line(tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for text in (str(loop), "x" * 5000, "~nobody-of-that-name/x", "a\0b"):
        with pytest.raises(ConfigError, match="model must be an existing ONNX file") as caught:
            local_model(text, tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dims", ["1x99999999999999999999", "0x1", "10000000000"])
def test_absurd_dimensions_are_refused(dims):
    with pytest.raises(ConfigError, match="positive dimensions of at most 9 digits"):
        parse_input_shapes(f"image:{dims}")


NAMES = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.lists(st.integers(1, 999), max_size=4).map(tuple), min_size=1))
@settings(max_examples=300, deadline=None)
def test_shapes_survive_being_written(shapes):
    assert parse_input_shapes(format_input_shapes(shapes)) == shapes
