"""Several sizes in one library: from an ONNX model to calls of any size."""

from __future__ import annotations

import dataclasses
import shutil

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import helper

import tvmopt
from tests.threads import in_threads
from tvmopt.compare import same_non_finite
from tvmopt.errors import AccuracyError, ConfigError
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.runtime.model import read_golden
from tvmopt.runtime.sizes import EXACT, PADDED, ROWS, SizeDimension

RNG = np.random.default_rng(0)
W = RNG.standard_normal((8, 6), np.float32)


def _normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32)


def _check(compiled, model, inputs: dict[str, np.ndarray]) -> None:
    """Compare the outputs of a compiled model with ONNX Runtime's."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for got, wanted in zip(compiled(inputs), session.run(None, inputs), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def _dense(make_model) -> onnx.ModelProto:
    """Return ``relu(x @ W)`` for ``x`` of (n, s, 8)."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    shapes = {"x": ("float32", ["n", "s", 8])}, {"y": ("float32", ["n", "s", 6])}
    return make_model(nodes, *shapes, {"w": W})


class TestRowsAndLengths:
    """Six sizes: rows are divided among them, lengths are padded."""

    @pytest.fixture(scope="class")
    def folder(self, make_model, tmp_path_factory):
        folder = tmp_path_factory.mktemp("dense") / "bundle"
        tvmopt.compile(_dense(make_model), "n=4,1,2;s=8,16", threads=2, output=folder)
        return folder

    @pytest.fixture(scope="class")
    def compiled(self, folder):
        return tvmopt.load(folder)

    def test_what_the_metadata_says(self, compiled) -> None:
        found = compiled.metadata
        shapes = [size.inputs[0] for size in found.sizes]
        assert shapes == [(n, s, 8) for n in (4, 2, 1) for s in (16, 8)]
        assert [size.outputs[0] for size in found.sizes] == [(n, s, 6) for n, s, _ in shapes]
        assert all(size.milliseconds > 0 for size in found.sizes)
        place = ((0, 0),), ((0, 0),)
        along = ((0, 1),), ((0, 1),)
        assert found.dimensions == (
            SizeDimension("n", *place, ROWS),
            SizeDimension("s", *along, PADDED),
        )
        assert found.native
        assert found.inputs[0].shape == (4, 16, 8)
        assert found.open_inputs[0].shape == (-1, -1, 8)

    @pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9, 23])
    @pytest.mark.parametrize("length", [1, 7, 8, 9, 16])
    def test_outputs_equal_numpy(self, compiled, rows, length) -> None:
        x = _normal(rows, length, 8)
        [y] = compiled(x)
        assert y.shape == (rows, length, 6)
        np.testing.assert_allclose(y, np.maximum(x @ W, 0), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(
        ("shape", "message"),
        [
            ((4, 17, 8), r"was compiled for \(x:4x16x8; x:4x8x8; x:2x16x8; .*\), but got x:4x17x8"),
            ((4, 16, 7), "but got x:4x16x7; compile it for this size, too"),
            ((0, 16, 8), "the same size of at least 1 along 'rows', but got 0"),
            ((4, 0, 8), "the same size of at least 1 along 's', but got 0"),
            ((4, 16), r"input 'x' must have 3 axes, but got shape \(4, 16\)"),
        ],
    )
    def test_other_shapes_are_refused(self, compiled, shape, message) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            compiled(np.zeros(shape, np.float32))
        assert "\n" not in str(caught.value)

    def test_threads_call_other_sizes_at_once(self, folder) -> None:
        """No size has been called before: the first calls of a size meet."""
        compiled = tvmopt.load(folder)
        rng = np.random.default_rng(1)
        inputs = [
            rng.standard_normal((1 + i % 5, 1 + 3 * i % 16, 8), np.float32) for i in range(64)
        ]
        found: dict[tuple[int, int], np.ndarray] = {}

        def call(thread: int) -> None:
            for number, x in enumerate(inputs[thread:] + inputs[:thread]):
                found[thread, (thread + number) % len(inputs)] = compiled(x)[0]

        in_threads(call)
        assert len(found) == 8 * len(inputs)
        for (_, number), y in found.items():
            np.testing.assert_allclose(y, np.maximum(inputs[number] @ W, 0), rtol=1e-5, atol=1e-5)

    def test_each_size_can_be_bound(self, compiled) -> None:
        for number, size in enumerate(compiled.metadata.sizes):
            call = compiled.bind(size=number)
            x = _normal(*size.inputs[0])
            call.inputs["x"][...] = x
            [y] = call()
            assert y.shape == size.outputs[0]
            np.testing.assert_allclose(y, np.maximum(x @ W, 0), rtol=1e-5, atol=1e-5)
        with pytest.raises(ConfigError, match="input 'x' must"):
            compiled.bind({"x": compiled.bind().inputs["x"]}, size=1)

    @pytest.mark.parametrize("number", [-1, 6])
    def test_a_size_that_does_not_exist_is_refused(self, compiled, number) -> None:
        rule = "size must be the number of one of metadata.sizes, of which there are 6"
        with pytest.raises(ConfigError, match=f"{rule}, but got {number}"):
            compiled.bind(size=number)

    def test_golden_outputs_of_each_size(self, folder) -> None:
        compiled = tvmopt.load(folder)
        assert compiled.check_golden(folder) <= compiled.metadata.tolerance
        for number, size in enumerate(compiled.metadata.sizes):
            inputs, [wanted] = read_golden(folder, compiled.metadata, number)
            assert inputs["x"].shape == size.inputs[0]
            np.testing.assert_allclose(wanted, np.maximum(inputs["x"] @ W, 0), rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("number", range(6))
    def test_a_size_that_computes_otherwise_is_found(self, folder, monkeypatch, number) -> None:
        compiled = tvmopt.load(folder)
        caller = compiled._callers[number]
        right = caller.run
        monkeypatch.setattr(caller, "run", lambda arrays: [right(arrays)[0] + 1])
        with pytest.raises(AccuracyError, match="must equal the golden output"):
            compiled.check_golden(folder)

    def test_a_copy_of_the_folder_is_the_same_model(self, folder, compiled, tmp_path) -> None:
        again = tvmopt.load(shutil.copytree(folder, tmp_path / "copy"))
        assert again.metadata == compiled.metadata
        x = _normal(5, 9, 8)
        np.testing.assert_array_equal(again(x)[0], compiled(x)[0])


def _attention(make_model, *, masked: bool) -> onnx.ModelProto:
    """Return ``softmax(x @ x.T + (1 - mask) * -1e9) @ x``, or the same without a mask."""
    shape = "float32", ["n", "s", 4]
    inputs = {"x": shape} | ({"mask": ("int64", ["n", "s"])} if masked else {})
    bias = [
        helper.make_node("Cast", ["mask"], ["m"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Sub", ["one", "m"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "low"], ["bias"]),
        helper.make_node("Unsqueeze", ["bias", "axis"], ["wide"]),
        helper.make_node("Add", ["scores", "wide"], ["seen"]),
    ]
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["scores"]),
        *(bias if masked else []),
        helper.make_node("Softmax", ["seen" if masked else "scores"], ["p"], axis=-1),
        helper.make_node("MatMul", ["p", "x"], ["y"]),
    ]
    constants = {"one": np.float32(1), "low": np.float32(-1e9), "axis": np.array([1])}
    return make_model(nodes, inputs, {"y": shape}, constants if masked else {})


def test_a_mask_lets_lengths_be_padded(make_model) -> None:
    model = _attention(make_model, masked=True)
    compiled = tvmopt.compile(model, "n=2,1;s=8,16", threads=2)
    assert [one.handling for one in compiled.metadata.dimensions] == [ROWS, PADDED]
    for rows, length in ((1, 3), (2, 8), (3, 12), (5, 16)):
        mask = RNG.integers(0, 2, (rows, length))
        mask[:, 0] = 1
        _check(compiled, model, {"x": _normal(rows, length, 4), "mask": mask})
    with pytest.raises(ConfigError, match="along 's', but got 8, 9"):
        compiled({"x": _normal(1, 8, 4), "mask": np.ones((1, 9), np.int64)})
    with pytest.raises(ConfigError, match="along 'rows', but got 1, 2"):
        compiled({"x": _normal(1, 8, 4), "mask": np.ones((2, 8), np.int64)})


@pytest.mark.slow  # of the lengths above
def test_without_a_mask_only_the_compiled_lengths_are_taken(make_model) -> None:
    model = _attention(make_model, masked=False)
    compiled = tvmopt.compile(model, "n=2,1;s=8,16", threads=2)
    assert [one.handling for one in compiled.metadata.dimensions] == [ROWS, EXACT]
    for rows, length in ((1, 8), (3, 8), (5, 16)):
        _check(compiled, model, {"x": _normal(rows, length, 4)})
    reason = "'s' cannot be padded: the model's outputs depend on the padding"
    with pytest.raises(ConfigError, match=f"but got x:1x9x4; {reason}; compile it for this size"):
        compiled(_normal(1, 9, 4))


def test_inputs_with_sets_of_their_own_share_no_row(make_model, tmp_path) -> None:
    """Where one input has a row, and the other four, it is no row of a larger call."""
    shape = "float32", ["n", 8]
    node = helper.make_node("Add", ["x", "z"], ["y"])
    model = make_model([node], {"x": shape, "z": shape}, {"y": shape}, {})
    metadata = tvmopt.compile(model, "x:{1,4}x8,z:{1,4}x8", threads=1, output=tmp_path).metadata
    assert len(metadata.sizes) == 4
    assert metadata.any_rows
    for fastest in range(4):  # whichever is measured to be
        sizes = [
            dataclasses.replace(size, milliseconds=1.0 if number == fastest else 1.5)
            for number, size in enumerate(metadata.sizes)
        ]
        dataclasses.replace(metadata, sizes=tuple(sizes)).write(tmp_path)
        compiled = tvmopt.load(tmp_path)
        for rows in (1, 2, 3, 4, 5, 9):
            _check(compiled, model, {"x": _normal(rows, 8), "z": _normal(rows, 8)})
        _check(compiled, model, {"x": _normal(4, 8), "z": _normal(1, 8)})


def test_an_input_with_the_set_of_another_has_its_rows(make_model) -> None:
    shape = "float32", ["n", 8]
    node = helper.make_node("Add", ["x", "z"], ["y"])
    model = make_model([node], {"x": shape, "z": shape}, {"y": shape}, {})
    compiled = tvmopt.compile(model, "x:{1,4}x8,z:=x", threads=1)
    both = ((0, 0), (1, 0))
    assert compiled.metadata.dimensions == (SizeDimension("x[0]", both, ((0, 0),), ROWS),)
    for rows in (1, 2, 4, 7):
        _check(compiled, model, {"x": _normal(rows, 8), "z": _normal(rows, 8)})


@pytest.mark.slow  # tests/stages/test_non_finite.py has one size
def test_nan_is_where_onnx_runtime_has_it_in_further_sizes(make_model) -> None:
    """Winograd convolutions spread NaN over a tile, and a size falls back to its direct ones."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    shape = "float32", ["n", 64, 28, 28]
    model = make_model([node], {"x": shape}, {"y": shape}, {"w": _normal(64, 64, 3, 3) / 24})
    compiled = tvmopt.compile(model, "n=1,3", threads=2, layout="NHWC")
    assert len({compiled._callers[size].has_fallback for size in (0, 1)}) == 1
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 2, 3, 4):
        x = _normal(rows, 64, 28, 28)
        x[-1, 5, 13, 9], x[0, 3, 1, 1] = np.nan, np.inf
        [wanted] = session.run(None, {"x": x})
        [got] = compiled(x)
        assert np.isnan(wanted).any()
        assert not np.isnan(wanted).all()
        assert same_non_finite(got, wanted)
        known = np.isfinite(wanted)
        np.testing.assert_allclose(got[known], wanted[known], rtol=1e-3, atol=1e-3)


def _embedding(make_model) -> onnx.ModelProto:
    """Return a lookup in a table of 1 MB."""
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    shapes = {"x": ("int64", ["n"])}, {"y": ("float32", ["n", 64])}
    return make_model([node], *shapes, {"w": _normal(4096, 64)})


def test_weights_are_stored_once(make_model, tmp_path) -> None:
    model = _embedding(make_model)
    shapes = {"one": "n=16", "three": "n=16,4,1"}
    for name, text in shapes.items():
        tvmopt.compile(model, text, threads=2, output=tmp_path / name)
    one, three = ((tmp_path / name / LIBRARY_FILE).stat().st_size for name in shapes)
    assert 2**20 < one < three < 1.3 * one


_SEGMENTS = """
<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
two (float[n,8] x) => (float[n,8] z)
{
  a = Tanh (x)
  b = com.microsoft.QuickGelu <alpha: float = 1.0> (a)
  c = Exp (b)
  d = com.microsoft.QuickGelu <alpha: float = 1.5> (c)
  z = Add (d, x)
}
"""


def test_segments_of_onnx_runtime_take_each_size(tmp_path) -> None:
    model = onnx.parser.parse_model(_SEGMENTS)
    compiled = tvmopt.compile(model, "n=4,1", threads=2, output=tmp_path)
    assert compiled.metadata.segments == 2
    assert len(compiled.metadata.sizes) == 2
    for rows in (1, 2, 4, 5, 9):
        _check(compiled, model, {"x": _normal(rows, 8)})
    again = tvmopt.load(tmp_path)
    assert again.check_golden(tmp_path) <= again.metadata.tolerance


def test_a_virtual_machine_runs_each_size(make_model, tmp_path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("TopK", ["m", "k"], ["y", "i"]),
    ]
    outputs = {"y": ("float32", ["n", 2]), "i": ("int64", ["n", 2])}
    constants = {"w": W, "k": np.array([2])}
    model = make_model(nodes, {"x": ("float32", ["n", 8])}, outputs, constants)
    compiled = tvmopt.compile(model, "n=4,1", threads=2, output=tmp_path)
    assert not compiled.metadata.native
    assert len(compiled.metadata.sizes) == 2
    for rows in (1, 2, 4, 5, 9):
        _check(compiled, model, {"x": _normal(rows, 8)})
    again = tvmopt.load(tmp_path)
    assert again.check_golden(tmp_path) <= again.metadata.tolerance
    with pytest.raises(ConfigError, match="bind must be called on a model of native code"):
        again.bind(size=1)

    def call(thread: int) -> None:
        x = np.full((1 + thread, 8), thread, np.float32)
        found[thread] = again(x)[0]

    found: dict[int, np.ndarray] = {}
    in_threads(call)
    top = np.sort(W.sum(axis=0))[::-1][:2]
    for thread in range(8):
        np.testing.assert_allclose(found[thread], [thread * top] * (1 + thread), rtol=1e-4)


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["int8", "bfloat16"])
def test_low_precision_in_two_sizes(make_model, dtype, tmp_path) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("Gemm", ["r", "v"], ["y"], name="second"),
    ]
    shapes = {"x": ("float32", ["n", 64])}, {"y": ("float32", ["n", 16])}
    weights = {"w": _normal(64, 32) / 8, "v": _normal(32, 16) / 6}
    model = make_model(nodes, *shapes, weights)
    rng = np.random.default_rng(5)
    data = {"x": rng.standard_normal((40, 64), np.float32)}
    compiled = tvmopt.compile(model, "n=8,2", threads=1, dtype=dtype, data=data, output=tmp_path)
    assert len(compiled.metadata.sizes) == 2
    metadata = compiled.metadata
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for rows in (1, 2, 3, 8, 11):
        x = rng.standard_normal((rows, 64), np.float32)
        [wanted] = session.run(None, {"x": x})
        [got] = compiled(x)
        cosine = np.vdot(got, wanted) / np.linalg.norm(got) / np.linalg.norm(wanted)
        assert cosine >= 0.98
        assert np.abs(got - wanted).max() > 0
    assert compiled.check_golden(tmp_path) <= metadata.tolerance
