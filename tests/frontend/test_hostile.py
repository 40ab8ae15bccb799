"""Malformed models and invalid names are rejected with a one-line error."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from tvmopt.errors import ConfigError, ModelError
from tvmopt.frontend.given_shapes import format_input_shapes, parse_input_shapes
from tvmopt.frontend.load import load_onnx
from tvmopt.frontend.reference import input_specs
from tvmopt.frontend.shapes import fix_input_shapes
from tvmopt.tracking.store.model_source import local_model

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


@pytest.mark.parametrize("role", ["input", "output", "node", "domain", "op", "dim"])
def test_names_have_a_length(role, tmp_path):
    onnx.save_model(_model(**{role: "n" * 1001}), str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", "must have at most 1000 characters, but an? .* has 1001: 'nnn")
    if role in ("input", "output", "node"):
        onnx.save_model(_model(**{role: "n" * 1000}), str(tmp_path / "m.onnx"))
        load_onnx(tmp_path / "m.onnx")


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


@pytest.mark.parametrize("dims", ["1x99999999999999999999", "10000000000"])
def test_absurd_dimensions_are_refused(dims):
    with pytest.raises(ConfigError, match="dimensions of at most 9 digits"):
        parse_input_shapes(f"image:{dims}")


NAMES = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, st.lists(st.integers(1, 999), max_size=4).map(tuple), min_size=1))
@settings(max_examples=300, deadline=None)
def test_shapes_survive_being_written(shapes):
    assert parse_input_shapes(format_input_shapes(shapes)) == shapes


def _external(name="w", **entries):
    tensor = onnx.numpy_helper.from_array(np.zeros(3, np.float32), name)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def test_names_that_are_no_text_are_refused(tmp_path):
    content = _model(node="marked").SerializeToString().replace(b"marked", b"mar\xffed")
    (tmp_path / "m.onnx").write_bytes(content)
    _refused(tmp_path / "m.onnx", r"names in a model must be UTF-8, but a node is called")


def test_a_model_without_outputs_is_refused(tmp_path):
    model = _model()
    del model.graph.output[:]
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", "must hold a graph with outputs")


def test_a_file_beyond_two_gigabytes_is_not_read(tmp_path):
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(2**31)
    _refused(tmp_path / "m.onnx", "must be a file under 2 GiB")


def test_sparse_initializers_are_refused(tmp_path):
    model = _model()
    sparse = model.graph.sparse_initializer.add(dims=[3])
    sparse.values.CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"))
    sparse.indices.CopyFrom(onnx.numpy_helper.from_array(np.zeros(1, np.int64), "at"))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", "initializers must be dense, but 'w' is sparse")


def test_external_data_in_sparse_attributes_does_not_reach_onnx_runtime(tmp_path):
    model = _model()
    attribute = model.graph.node[0].attribute.add(name="a", type=onnx.AttributeProto.SPARSE_TENSOR)
    attribute.sparse_tensor.values.CopyFrom(_external(location="*/_ORT_MEM_ADDR_/*", offset="8"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    _refused(tmp_path / "m.onnx", "external tensor data must exist")
    (tmp_path / "*" / "_ORT_MEM_ADDR_").mkdir(parents=True)
    (tmp_path / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(b"\0" * 100)
    _refused(tmp_path / "m.onnx", "must belong to initializers or attributes of nodes")


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({}, "must name its file"),
        ({"location": "w", "offset": "0x10"}, "must be whole numbers"),
        ({"location": "w", "length": "9" * 5000}, "must be whole numbers"),
        ({"location": "w", "length": str(2**40)}, "must lie in its file"),
        ({"location": "w", "offset": str(2**70), "length": "8"}, "must lie in its file"),
        ({"location": "w", "offset": "-8"}, "must lie in its file"),
        ({"location": "w", "length": "-8"}, "must lie in its file"),
        ({"location": "x" * 5000}, "external tensor data must lie in a file"),
    ],
)
def test_external_data_is_where_and_what_it_says(entries, words, tmp_path):
    model = _model()
    model.graph.initializer.append(_external(**entries))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "w").write_bytes(b"\0" * 100)
    _refused(tmp_path / "m.onnx", words)


def test_tensors_that_share_bytes_are_counted_each(tmp_path):
    model = _model()
    for number in range(30):
        model.graph.initializer.append(_external(f"w{number}", location="w"))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with (tmp_path / "w").open("wb") as file:
        file.truncate(10**8)
    _refused(tmp_path / "m.onnx", r"name 2\.8 GiB of external data")


def test_inputs_beyond_all_memory_are_refused():
    model = _model()
    fix_input_shapes(model, {"x": (999_999_999,)})
    for dim in range(2):
        model.graph.input[0].type.tensor_type.shape.dim.add().dim_value = 999_999_999 - dim
    with pytest.raises(ModelError, match="must fit into memory"):
        input_specs(model)


@pytest.mark.parametrize("scales", [[-1, -1], [0, 1], [1, np.nan], [np.inf, 1], [1, 1e38]])
def test_scales_that_no_resize_takes_are_refused(scales, tmp_path):
    """ONNX Runtime aborts on the negative sizes that some scales give."""
    model = _model()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(scales, "f4"), "s"))
    model.graph.node.append(helper.make_node("Resize", ["y", "", "s"], ["z"], name="resize"))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    rule = "scales of Resize must be positive and at most 2147483648, but node 'resize'"
    _refused(tmp_path / "m.onnx", rule)


@pytest.mark.parametrize("size", [0, -2, 2**32, 2**15 + 1])
@pytest.mark.parametrize("kind", ["DepthToSpace", "SpaceToDepth"])
def test_block_sizes_that_divide_by_zero_are_refused(kind, size, tmp_path):
    """ONNX Runtime divides by the square of the block size, which overflows to 0."""
    model = _model()
    model.graph.node.append(helper.make_node(kind, ["y"], ["z"], name="block", blocksize=size))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", f"blocksize of {kind} must be 1 to 32768, but node 'block'")


def _padded(pads, folder, *, as_attribute=False):
    made = {"pads": pads} if as_attribute else {}
    inputs = ["x"] if as_attribute else ["x", "pads"]
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Pad", inputs, ["y"], name="pad", **made)],
            "g",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4, 4])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)],
            [] if as_attribute else [onnx.numpy_helper.from_array(np.array(pads), "pads")],
        ),
        opset_imports=[helper.make_opsetid("", 10 if as_attribute else 17)],
    )
    onnx.save_model(model, str(folder / "m.onnx"))
    return folder / "m.onnx"


@pytest.mark.parametrize("as_attribute", [False, True])
def test_pads_that_remove_more_than_there_is_are_refused(as_attribute, tmp_path):
    """An assertion aborts ONNX Runtime and ONNX when the result is sliced."""
    path = _padded([0, -3, 0, 0, -2, 0], tmp_path, as_attribute=as_attribute)
    _refused(path, "Pad must not remove more than there is, but node 'pad' has pads -3 and -2")


@pytest.mark.parametrize("pads", [[0, -2, 0, 0, -2, 0], [0, -9, 3, 1, 9, 0], [2, 2]])
def test_pads_that_leave_something_are_read(pads, tmp_path):
    assert load_onnx(_padded(pads, tmp_path)).graph.node[0].op_type == "Pad"


def test_a_default_of_another_type_than_its_input_is_refused(tmp_path):
    """ONNX Runtime rejects it; without the check, the model would be compiled."""
    model = _model()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(3, np.float16), "x"))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", "initializer 'x' must have the type of the input of its name")


@pytest.mark.parametrize("shape", [(4,), (3, 1), ()], ids=str)
def test_a_default_of_another_shape_than_its_input_is_refused(shape, tmp_path):
    """ONNX Runtime also rejects it."""
    model = _model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, "f4"), "x"))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    _refused(tmp_path / "m.onnx", "initializer 'x' must have the shape of the input of its name")


def test_a_default_may_fix_a_dimension_that_its_input_leaves_open(tmp_path):
    model = _model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(7, "f4"), "x"))
    onnx.save_model(model, str(tmp_path / "m.onnx"))
    assert load_onnx(tmp_path / "m.onnx").graph.initializer[0].dims == [7]
