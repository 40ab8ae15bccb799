"""Tests of loading ONNX files: rejected files, external data, the model digest."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import set_external_data

from tvmopt.errors import ModelError
from tvmopt.frontend.load import load_onnx, model_digest
from tvmopt.frontend.prepare import prepare

WEIGHT = np.arange(32, dtype=np.float32).reshape(4, 8)


def _refer_outside(tensor: onnx.TensorProto, location: str) -> onnx.TensorProto:
    set_external_data(tensor, location)
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    return tensor


@pytest.fixture
def external(make_model, tmp_path):
    """Write ``model.onnx`` with its weight at ``location``, and ``weights.bin`` beside it."""

    def write(location="weights.bin"):
        folder = tmp_path / "models"
        folder.mkdir(exist_ok=True)
        model = make_model(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            {"x": ("float32", [2, 4])},
            {"y": ("float32", [2, 8])},
            {"w": WEIGHT},
        )
        _refer_outside(model.graph.initializer[0], location)
        (folder / "weights.bin").write_bytes(WEIGHT.tobytes())
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return folder / "model.onnx"

    return write


def test_segments_of_tensors_are_ignored_as_in_onnx_runtime(conv_model, tmp_path):
    model = onnx.ModelProto()
    model.CopyFrom(conv_model)
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(WEIGHT))
    model.graph.node.append(constant)
    before = model.SerializeToString()
    for tensor in (model.graph.initializer[0], constant.attribute[0].t):
        tensor.segment.begin, tensor.segment.end = 3, -7
    del model.graph.node[-1]
    model.graph.node.append(constant)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    assert load_onnx(path).SerializeToString() == before


def test_missing_file(tmp_path):
    with pytest.raises(ModelError, match=r"existing ONNX file, but there is none at '.*no\.onnx'"):
        load_onnx(tmp_path / "no.onnx")


def test_folder(tmp_path):
    with pytest.raises(ModelError, match="is a folder"):
        load_onnx(tmp_path)


@pytest.mark.parametrize("content", [b"", b"no protobuf at all\xff\xfe", bytes(range(256)) * 8])
def test_bytes_that_are_no_model(tmp_path, content):
    (tmp_path / "bad.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"could not be parsed|it is empty, truncated"):
        load_onnx(tmp_path / "bad.onnx")


def test_empty_file_is_called_empty(tmp_path):
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(ModelError, match="it is empty, truncated, or no ONNX file"):
        load_onnx(tmp_path / "empty.onnx")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.99])
def test_truncated_file(tmp_path, conv_model, share):
    whole = conv_model.SerializeToString()
    (tmp_path / "cut.onnx").write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ModelError, match=r"cut\.onnx"):
        load_onnx(tmp_path / "cut.onnx")


def test_messages_are_one_line(tmp_path):
    (tmp_path / "bad.onnx").write_bytes(b"\n\n\xff\xff\n")
    with pytest.raises(ModelError) as caught:
        load_onnx(tmp_path / "bad.onnx")
    assert "\n" not in str(caught.value)


def test_external_data_is_read(external):
    model = load_onnx(external())
    np.testing.assert_array_equal(numpy_helper.to_array(model.graph.initializer[0]), WEIGHT)


@pytest.mark.parametrize("location", ["../secret.bin", "deep/../../secret.bin", "absolute"])
def test_external_data_outside_the_folder(external, tmp_path, location):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(WEIGHT.tobytes())
    path = external(str(secret) if location == "absolute" else location)
    for read in (load_onnx, model_digest):
        with pytest.raises(ModelError, match=r"must lie in the folder of the model.*outside it"):
            read(path)


def test_external_data_through_a_link_out_of_the_folder(external, tmp_path):
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    path = external("link.bin")
    (path.parent / "link.bin").symlink_to(tmp_path / "secret.bin")
    for read in (load_onnx, model_digest):
        with pytest.raises(ModelError, match="which is outside it"):
            read(path)


def test_external_data_missing(external):
    with pytest.raises(ModelError, match=r"names 'gone\.bin' and there is no such file"):
        load_onnx(external("gone.bin"))


def test_external_data_too_short(external):
    path = external()
    (path.parent / "weights.bin").write_bytes(b"\0" * 5)
    with pytest.raises(ModelError, match="model"):
        prepare(load_onnx(path), {})


def test_external_data_of_a_local_function_counts_too(make_model, tmp_path):
    (tmp_path / "secret.bin").write_bytes(WEIGHT.tobytes())
    constant = helper.make_node(
        "Constant", [], ["w"], value=numpy_helper.from_array(WEIGHT, "inner")
    )
    _refer_outside(constant.attribute[0].t, "../secret.bin")
    opset = helper.make_opsetid("", 17)
    function = helper.make_function(
        "local", "Times", ["x"], ["y"],
        [constant, helper.make_node("MatMul", ["x", "w"], ["y"])], [opset],
    )  # fmt: skip
    model = make_model(
        [helper.make_node("Times", ["x"], ["y"], domain="local")],
        {"x": ("float32", [2, 4])},
        {"y": ("float32", [2, 8])},
        domains=["local"],
    )
    model.functions.append(function)
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for read in (load_onnx, model_digest):
        with pytest.raises(ModelError, match="which is outside it"):
            read(folder / "model.onnx")


def test_digest_is_of_the_content_not_of_the_path(conv_model, tmp_path):
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / name).write_bytes(conv_model.SerializeToString())
    assert model_digest(tmp_path / "a.onnx") == model_digest(tmp_path / "b.onnx")


def test_digest_changes_with_one_weight(conv_model, tmp_path):
    changed = onnx.ModelProto()
    changed.CopyFrom(conv_model)
    weight = numpy_helper.to_array(changed.graph.initializer[0]).copy()
    weight.flat[7] = np.nextafter(weight.flat[7], np.float32(9))
    changed.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(weight, changed.graph.initializer[0].name)
    )
    digests = []
    for model in (conv_model, changed):
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
        digests.append(model_digest(tmp_path / "m.onnx"))
    assert digests[0] != digests[1]


def test_digest_changes_with_external_data(external):
    path = external()
    before = model_digest(path)
    data = bytearray(WEIGHT.tobytes())
    data[17] ^= 1
    (path.parent / "weights.bin").write_bytes(bytes(data))
    assert model_digest(path) != before


def _name_range(path, offset, length):
    model = onnx.load_model(str(path), load_external_data=False)
    tensor = model.graph.initializer[0]
    tensor.raw_data = b""
    set_external_data(tensor, "weights.bin", offset=offset, length=length)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    path.write_bytes(model.SerializeToString())


def test_only_what_tensors_name_is_read_of_an_external_file(external):
    path = external()
    _name_range(path, 4096, WEIGHT.nbytes)
    weights = path.parent / "weights.bin"
    with weights.open("wb") as file:
        file.seek(4096)
        file.write(WEIGHT.tobytes())
    before = model_digest(path)
    with weights.open("r+b") as file:
        file.truncate(60 * 10**9)  # a sparse file, which would take minutes to read
        file.seek(-1, 2)
        file.write(b"x")
    assert model_digest(path) == before
    np.testing.assert_array_equal(
        numpy_helper.to_array(load_onnx(path).graph.initializer[0]), WEIGHT
    )
    with weights.open("r+b") as file:
        file.seek(4096 + 17)
        file.write(b"x")
    assert model_digest(path) != before


def test_digest_changes_with_the_range(external):
    path = external()
    (path.parent / "weights.bin").write_bytes(WEIGHT.tobytes() * 2)
    digests = []
    for offset in (0, WEIGHT.nbytes):
        _name_range(path, offset, WEIGHT.nbytes)
        digests.append(model_digest(path))
    assert digests[0] != digests[1]
