"""NaN, infinities and huge values: networks equal ONNX Runtime, and conversion records it."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import tvmopt
from benchmarks import non_finite, zoo
from benchmarks.cpu_models import ModelFile
from tests.libraries import loaded
from tvmopt.build import build_library
from tvmopt.compare import same_non_finite
from tvmopt.config import ConvertConfig
from tvmopt.device.target import resolve_target
from tvmopt.frontend import import_onnx, layer_table, load_onnx, parse_input_shapes, prepare
from tvmopt.frontend.reference import Reference, loses_nan
from tvmopt.runtime.metadata import TensorSpec
from tvmopt.stages.convert import convert
from tvmopt.stages.non_finite import AGREES, NON_FINITE_TAG, compare_non_finite
from tvmopt.transform.lower import lower

_DIGITS = Path(__file__).parents[2] / "tvmopt" / "examples" / "digits_cnn.onnx"


@pytest.fixture(scope="module")
def digits():
    """Return the prepared bundled network, its reference and its module."""
    prepared = prepare(load_onnx(_DIGITS), parse_input_shapes("image:1x1x8x8"))
    module = import_onnx(prepared.model, layer_table(prepared.model))
    return Reference(prepared.reference), module


@pytest.fixture(scope="module", params=["none", "default"])
def answer(request, digits, tmp_path_factory):
    """Compile the bundled network with the schedules of a strategy."""
    reference, module = digits
    target = resolve_target("host", 1)
    path = tmp_path_factory.mktemp("library") / "digits.so"
    build_library(lower(module, target.to_tvm()), target, path, schedule=request.param)
    run = loaded(path)
    return lambda image: (run(image)[0], reference({"image": image})[0])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-42])
@pytest.mark.parametrize("everywhere", [True, False])
def test_extreme_images_get_the_answer_of_onnx_runtime(answer, value, everywhere) -> None:
    image = np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)
    image[..., :, :] = np.float32(value) if everywhere else image
    image[0, 0, 3, 3] = value
    got, wanted = answer(image)
    assert same_non_finite(got, wanted)
    if np.isnan(value):
        assert np.isnan(got).all()


@pytest.fixture
def converted(tmp_path, monkeypatch):
    """Convert a model; return the result of the stage."""
    monkeypatch.setenv("TVM_NUM_THREADS", os.environ.get("TVM_NUM_THREADS", "1"))

    def run(model: Path, shapes: str = "", dtype: str = "float32"):
        (tmp_path / "out").mkdir()
        config = ConvertConfig(shapes, resolve_target("host", 1).to_dict(), dtype=dtype)
        return convert(config, model, tmp_path / "out", lambda *_: None)

    return run


@pytest.mark.sample(1)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_conversion_records_that_nan_is_where_the_reference_has_it(converted, dtype) -> None:
    result = converted(_DIGITS, "image:1x1x8x8", dtype)
    assert result.tags[NON_FINITE_TAG] == AGREES
    assert any("NaN and infinities are where ONNX Runtime has them" in x for x in result.changed)


def test_conversion_records_where_nan_differs(converted, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tvmopt.transform.cpu_pipeline.keep_nan", lambda module: module)
    nodes = [helper.make_node("Relu", ["x"], ["y"])]  # without the pass, NaN becomes 0
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 16]) for n in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "relu", [x], [y]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=9,
    )
    onnx.save(model, str(tmp_path / "relu.onnx"))
    result = converted(tmp_path / "relu.onnx")
    assert result.tags[NON_FINITE_TAG].startswith("differs: NaN everywhere (output 'y')")
    assert result.changed[-1].startswith("non-finite: not as ONNX Runtime on NaN everywhere")


def test_integers_indices_and_quantised_models_are_not_compared() -> None:
    def never(*_args):
        raise AssertionError

    specs = [TensorSpec("image", (1, 4), "float32")]
    how = {"dtype": "float32", "quantised": False, "kind": "normal"}
    ids = [TensorSpec("ids", (1, 4), "int64")]
    assert compare_non_finite(never, never, ids, ["y"], **how) is None
    assert compare_non_finite(never, never, specs, ["y"], **how | {"kind": "binary"}) is None
    found = compare_non_finite(never, never, specs, ["y"], **how | {"quantised": True})
    assert found is not None and "NaN" in found.line


# Expected differences. ONNX Runtime's LRN updates one running sum, so an overflow leaves NaN in
# later windows, whose own sums do not overflow.
_OVERFLOWS = {"light_inception_v1": {"1e38 everywhere", "numbers up to 3e38"}}


def test_sums_that_overflow_are_said_apart() -> None:
    specs = [TensorSpec("image", (1, 4), "float32")]

    def run(arrays, lost=()):
        total = np.sum(arrays[0], dtype=np.float32)
        return [np.float32([0 if np.isnan(total) and "nan" in lost else total])]

    def exact(inputs):
        huge = np.abs(inputs["image"]) > 1e30
        return (
            [np.float32([np.nan])]
            if np.isfinite(inputs["image"][huge]).any()
            else run([inputs["image"]])
        )

    how = {"dtype": "float32", "quantised": False, "kind": "normal"}
    with np.errstate(over="ignore", invalid="ignore"):
        found = compare_non_finite(run, exact, specs, ["y"], **how)
        assert found is not None
        assert found.tag.startswith(f"{AGREES}, but for sums that overflow: 1e38 everywhere")
        lossy = compare_non_finite(lambda a: run(a, ("nan",)), exact, specs, ["y"], **how)
    assert lossy is not None and lossy.tag.startswith("differs: NaN everywhere")


def test_nan_that_onnx_runtime_loses_is_said_apart() -> None:
    specs = [TensorSpec("x", (1, 4), "float32")]

    def run(arrays):
        return [np.float32([np.nan if np.isnan(arrays[0]).any() else 1, np.max(arrays[0])])]

    def exact(inputs):
        found = run([inputs["x"]])[0]
        return [np.where(np.isnan(found), np.float32(0.5), found)]

    how = {"dtype": "float32", "quantised": False, "kind": "normal"}
    known = compare_non_finite(run, exact, specs, ["y"], exact_loses_nan=True, **how)
    assert known is not None
    assert known.tag.startswith(
        f"{AGREES}, but for NaN that ONNX Runtime loses in recurrent layers"
    )
    unknown = compare_non_finite(run, exact, specs, ["y"], **how)
    assert unknown is not None and unknown.tag.startswith("differs: NaN everywhere")

    def forgets(arrays):
        return [np.nan_to_num(run(arrays)[0], nan=0, posinf=0, neginf=0)]

    wrong = compare_non_finite(forgets, exact, specs, ["y"], exact_loses_nan=True, **how)
    assert wrong is not None and wrong.tag.startswith("differs: +inf everywhere")


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("cell", "activation", "bias", "loses"),
    [
        ("LSTM", "", True, True), ("LSTM", "", False, False), ("LSTM", "HardSigmoid", False, True),
        ("GRU", "", True, True), ("GRU", "", False, False), ("GRU", "Relu", True, True),
        ("RNN", "", True, False), ("RNN", "Relu", False, True), ("RNN", "HardSigmoid", True, True),
        ("RNN", "LeakyRelu", True, False),
    ],
)  # fmt: skip
def test_where_onnx_runtime_loses_nan(make_model, cell, activation, bias, loses) -> None:
    """Facts of ONNX Runtime on which the comparison rests; a version that differs fails here."""
    gates, activations = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}[cell]
    weights = {
        "w": np.ones((1, 3 * gates, 5), np.float32), "r": np.ones((1, 3 * gates, 3), np.float32),
        "b": np.ones((1, 6 * gates), np.float32),
    }  # fmt: skip
    names = ["x", "w", "r", *(["b"] if bias else [])]
    chosen = {"activations": [activation] * activations} if activation else {}
    node = onnx.helper.make_node(cell, names, ["y"], hidden_size=3, **chosen)
    model = make_model(
        [node], {"x": ("float32", [2, 1, 5])}, {"y": ("float32", [2, 1, 1, 3])}, weights
    )
    x = np.full((2, 1, 5), np.nan, np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert np.isnan(session.run(None, {"x": x})[0]).all() != loses
    assert loses_nan(model) == loses
    assert np.isnan(tvmopt.compile(model, fallback="refuse")(x)[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["direct", "default", "fast"])
@pytest.mark.parametrize("name", [entry.name for entry in zoo.ENTRIES])
def test_networks_of_the_zoo_answer_nan_as_onnx_runtime(name, strategy) -> None:
    entry = zoo.entry(name)
    try:
        path = zoo.path(name)
    except (RuntimeError, FileNotFoundError) as error:
        pytest.skip(f"{name} is not to be had: {str(error).splitlines()[0]}")
    file = ModelFile(name, path, entry.input_shapes, entry)
    [row] = non_finite.measure(file, 1, 2, ["NHWC"], [strategy])
    assert not row.problem
    allowed = _OVERFLOWS.get(name, set())
    assert set(row.differs) <= allowed
