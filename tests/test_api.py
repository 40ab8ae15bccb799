"""``tvmopt.compile``: one call from a model to a compiled one."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

import tvmopt
from tvmopt.api import _text
from tvmopt.errors import AccuracyError, ConfigError, ModelError
from tvmopt.stages import check


@pytest.fixture(scope="module")
def wanted(conv_model):
    x = np.random.default_rng(5).standard_normal((1, 3, 8, 8), np.float32)
    session = ort.InferenceSession(conv_model.SerializeToString())
    return x, session.run(None, {"x": x})[0]


def _as_path(model, folder):
    onnx.save(model, str(folder / "net.onnx"))
    return folder / "net.onnx"


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "given",
    [lambda model, folder: model, lambda model, folder: model.SerializeToString(), _as_path],
    ids=["ModelProto", "bytes", "path"],
)
def test_a_model_from_anywhere(conv_model, wanted, given, tmp_path) -> None:
    x, y = wanted
    compiled = tvmopt.compile(given(conv_model, tmp_path), threads=1)
    np.testing.assert_allclose(compiled(x)[0], y, rtol=1e-4, atol=1e-4)


def test_it_can_be_kept_and_loaded(conv_model, wanted, tmp_path) -> None:
    x, _ = wanted
    compiled = tvmopt.compile(conv_model, threads=1, output=tmp_path / "kept")
    again = tvmopt.load(tmp_path / "kept")
    np.testing.assert_array_equal(again(x)[0], compiled(x)[0])
    with pytest.raises(ConfigError, match="output must be a folder that is new or empty"):
        tvmopt.compile(conv_model, output=tmp_path / "kept")


def test_int8_is_calibrated_on_samples(conv_model, wanted) -> None:
    x, y = wanted
    samples = np.random.default_rng(6).standard_normal((16, 3, 8, 8), np.float32)
    compiled = tvmopt.compile(
        conv_model, {"x": (1, 3, 8, 8)}, threads=1, data={"x": samples}, dtype="int8", layout="NHWC"
    )
    found = compiled(x)[0].ravel()
    assert np.dot(found, y.ravel()) / np.linalg.norm(found) / np.linalg.norm(y) > 0.98


@pytest.mark.slow  # tests/tracking/test_asked_metric.py has the metric
def test_a_dtype_of_each_layer_keeps_the_own_metric(conv_model, tmp_path) -> None:
    """The metric says 0 for answers that are not the float model's, which int8 has none of."""
    samples = np.random.default_rng(6).standard_normal((24, 3, 8, 8), np.float32)
    exact = tvmopt.compile(conv_model, {"x": (1, 3, 8, 8)}, threads=1)
    labels = np.stack([exact(sample[None])[0][0] for sample in samples])
    (tmp_path / "own.py").write_text(
        "import pathlib\n"
        "import numpy as np\n"
        "def same(outputs, labels):\n"
        "    pathlib.Path(__file__).with_name('was called').touch()\n"
        "    return float(np.abs(outputs - labels).max() < 1e-2)\n"
    )
    compiled = tvmopt.compile(
        conv_model, {"x": (1, 3, 8, 8)}, threads=1, data={"x": samples, "labels": labels},
        dtype="auto", metric=f"{tmp_path / 'own.py'}:same", metric_goal="larger",
        max_accuracy_drop=0.01,
    )  # fmt: skip
    assert (tmp_path / "was called").is_file()
    np.testing.assert_allclose(compiled(samples[:1])[0], labels[:1], atol=1e-2)


def test_a_metric_needs_labels(conv_model) -> None:
    samples = np.zeros((4, 3, 8, 8), np.float32)
    with pytest.raises(ConfigError, match=r"metric .* labels"):
        tvmopt.compile(
            conv_model, {"x": (1, 3, 8, 8)}, threads=1, data={"x": samples}, dtype="auto",
            metric="f1",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"layuot": "NHWC"}, ConfigError, "did you mean layout"),
        ({"dtype": "float8"}, ConfigError, "dtype must be one of"),
        ({"data": "nowhere.npz"}, ConfigError, "data must be an existing"),
        ({"input_shapes": {"z": (1,)}}, ConfigError, "input_shapes must name inputs of the model"),
        ({"input_shapes": {"x": (set(), 3)}}, ConfigError, "input_shapes must have sets of"),
        ({"input_shapes": {"x": ({"1"}, 1.5)}}, ConfigError, "input_shapes must be name:AxBxC"),
        ({"input_shapes": {"n": range(10**9)}}, ConfigError, "sets of positive integers"),
        ({"input_shapes": {"n": range(1, 10**9)}}, ConfigError, "at most 128 sizes"),
        ({"target": "cortex-a72"}, ConfigError, "target must run on this machine"),
        ({"model": 3}, ConfigError, "model must be a path, bytes or an onnx.ModelProto"),
        ({"model": b"nothing"}, ModelError, "model must"),
        ({"model": "nowhere.onnx"}, ModelError, "there is none at 'nowhere.onnx'"),
    ],
)
def test_what_is_wrong_is_one_line(conv_model, given, error, message) -> None:
    with pytest.raises(error, match=message) as caught:
        tvmopt.compile(**{"model": conv_model, **given})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (None, ""),
        ("batch=1,4", "batch=1,4"),
        ({"batch": 4, "x": (1, 3), "rate": ()}, "batch=4,x:1x3,rate:"),
        ({"batch": {16, 1, 4}, "length": range(16, 129, 16)}, "batch={1,4,16},length={16:128:16}"),
        ({"batch": frozenset({2}), "length": range(9, 0, -4)}, "batch={2},length={1:9:4}"),
        ({"x": ([1, 4, 16], 3, range(8, 10))}, "x:{1,4,16}x3x{8:9:1}"),
        ({"x": [{4, 1}, (2, 3)]}, "x:{1,4}x{2,3}"),
        ({"a=1": (2,), "b;{}": 3, "c": range(0)}, r"a\=1:2,b\;\{\}=3,c={}"),
    ],
)
def test_a_mapping_becomes_text(given, text) -> None:
    assert _text(given) == text


def test_what_onnx_runtime_refuses_in_its_part_is_one_error(make_model) -> None:
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"])
    inputs = {"x": ("float32", [2, 3]), "axis": ("int64", [])}
    compiled = tvmopt.compile(make_model([node], inputs, {"y": ("float32", [2, 3])}, {}))
    assert compiled.metadata.segments == 1
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ConfigError, match="ONNX Runtime, which runs a part of the model") as caught:
        compiled({"x": x, "axis": np.array(5)})
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(compiled({"x": x, "axis": np.array(1)})[0], [[1, 2, 3]] * 2)


def test_sessions_of_segments_end_with_their_model(make_model) -> None:
    node = onnx.helper.make_node("CumSum", ["x", "axis"], ["y"])
    inputs = {"x": ("float32", [2, 3]), "axis": ("int64", [])}
    model = make_model([node], inputs, {"y": ("float32", [2, 3])}, {})
    feed = {"x": np.ones((2, 3), np.float32), "axis": np.array(0)}
    first, second = (tvmopt.compile(model, threads=threads) for threads in (1, 2))
    before = _sessions()
    for compiled in (first, second):
        np.testing.assert_array_equal(compiled(feed)[0], [[1, 1, 1], [2, 2, 2]])
        compiled(feed)
    assert len(_sessions()) == len(before) + 2
    options = [session.get_session_options() for session in _sessions() if session not in before]
    assert {option.intra_op_num_threads for option in options} == {1, 2}
    del first, second, compiled, options
    gc.collect()
    assert len(_sessions()) == len(before)


def _sessions() -> list[ort.InferenceSession]:
    return [found for found in gc.get_objects() if isinstance(found, ort.InferenceSession)]


def test_a_model_without_inputs(make_model) -> None:
    node = helper.make_node("Relu", ["c"], ["y"], name="relu")
    model = make_model([node], {}, {"y": ("float32", [2])}, {"c": np.float32([-1, 2])})
    np.testing.assert_array_equal(tvmopt.compile(model, threads=1)({})[0], np.float32([0, 2]))


def test_what_is_wrong_as_a_whole_runs_in_onnx_runtime(
    conv_model, wanted, monkeypatch, caplog
) -> None:
    """Each node alone is right, but not the module: all run in ONNX Runtime."""
    x, y = wanted
    exact = check.check_outputs
    seen = []

    def refuses_once(got, expected, names, what, tolerance):
        seen.append(what)
        if what.startswith("the import") and len(seen) == 1:
            raise AccuracyError(f"{what} must be right")
        return exact(got, expected, names, what, tolerance)

    monkeypatch.setattr(check, "check_outputs", refuses_once)
    compiled = tvmopt.compile(conv_model, threads=1, layout="NCHW")
    np.testing.assert_allclose(compiled(x)[0], y, rtol=1e-5, atol=1e-5)
    assert compiled.metadata.segments == 1
    assert "as a whole: the import on random inputs must be right" in caplog.text
    seen.clear()
    with pytest.raises(AccuracyError, match="must be right"):
        tvmopt.compile(conv_model, threads=1, layout="NCHW", fallback="refuse")
