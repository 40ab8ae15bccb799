"""Fallback of Winograd convolutions: NaN and infinities as in ONNX Runtime."""

from __future__ import annotations

import shutil

import numpy as np
import onnx
import pytest
from onnx import helper

from tvmopt.compare import same_non_finite
from tvmopt.config import BuildConfig, ConvertConfig
from tvmopt.device.target import resolve_target
from tvmopt.errors import AccuracyError
from tvmopt.frontend import import_onnx
from tvmopt.frontend.prepare import prepare
from tvmopt.frontend.reference import Reference
from tvmopt.runtime import load
from tvmopt.runtime.metadata import LIBRARY_FILE
from tvmopt.stages import kept_library
from tvmopt.stages.build import build
from tvmopt.stages.convert import convert
from tvmopt.stages.lower_network import lower_network
from tvmopt.stages.non_finite import AGREES, NON_FINITE_TAG
from tvmopt.transform.conversion import convert_module

_SHAPE = (1, 64, 28, 28)
_TARGET = resolve_target("host", 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, make_model):
    """Convert two 3 x 3 convolutions, with Relu and with Clip."""
    folder = tmp_path_factory.mktemp("tiles")
    rng = np.random.default_rng(0)
    weights = {n: rng.standard_normal((64, 64, 3, 3), np.float32) / 24 for n in ("w", "v")}
    limits = {"low": np.float32(-1.0), "high": np.float32(6.0)}
    padded = {"pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", **padded),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Conv", ["r", "v"], ["b"], name="second", **padded),
        helper.make_node("Clip", ["b", "low", "high"], ["c"]),
    ]
    outputs = {name: ("float32", list(_SHAPE)) for name in ("a", "r", "c")}
    model = make_model(nodes, {"x": ("float32", list(_SHAPE))}, outputs, weights | limits)
    onnx.save(model, str(folder / "model.onnx"))
    (folder / "convert").mkdir()
    convert(
        ConvertConfig("", _TARGET.to_dict(), layout="NHWC"), folder / "model.onnx",
        folder / "convert", lambda *_: None,
    )  # fmt: skip
    return folder


def _built(folder, out, **options):
    out.mkdir()
    config = BuildConfig("tiles", _TARGET.to_dict(), **options)
    result = build(config, folder / "convert", None, "d", out, lambda *_: None)
    assert result.tags[NON_FINITE_TAG].startswith(AGREES)
    return out / "bundle"


@pytest.fixture(scope="module")
def bundle(folder):
    """Return the bundle of the build stage, which compared it with ONNX Runtime."""
    return _built(folder, folder / "build")


@pytest.fixture(scope="module")
def model(bundle):
    """Load the bundle."""
    return load(bundle)


@pytest.fixture(scope="module")
def exact(folder):
    """Return ONNX Runtime on the same model."""
    return Reference(str(folder / "model.onnx"), 2)


def _image() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(_SHAPE, np.float32)


def _planted(value: float, place: tuple[int, ...] | None = (0, 5, 13, 9)) -> np.ndarray:
    image = _image()
    image[place if place else ...] = value
    return image


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [(0, 5, 13, 9), (0, 63, 27, 27), (0, 0, 0, 0), None])
def test_nan_and_infinities_are_where_onnx_runtime_has_them(model, exact, value, place) -> None:
    image = _planted(value, place)
    outputs, expected = model({"x": image}), exact({"x": image})
    assert any(not np.isfinite(array).all() for array in expected)
    for got, wanted in zip(outputs, expected, strict=True):
        assert same_non_finite(got, wanted)
        known = np.isfinite(wanted)
        np.testing.assert_allclose(got[known], wanted[known], rtol=1e-3, atol=1e-3)


def _idle_call(model):
    """Return the one prepared call of a model that nothing runs."""
    call = model._caller._take()
    model._caller._give_back(call)
    return call


@pytest.fixture
def counted(model, monkeypatch):
    """Count the calls of the fallback."""
    calls: list[int] = []
    call = _idle_call(model)
    direct = call._fallback

    class Counted:
        replace_output = direct.replace_output

        def __call__(self):
            calls.append(1)
            return direct()

    monkeypatch.setattr(call, "_fallback", Counted())
    return calls


def test_finite_outputs_cost_no_second_call(model, counted) -> None:
    before = [np.array(array) for array in model(_image())]
    model(_planted(1e-42))
    assert not counted
    model(_planted(np.nan))
    assert len(counted) == 1
    after = model(_image())
    assert len(counted) == 1
    for a, b in zip(before, after, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_fallback_that_answers_otherwise_is_refused(model, bundle, monkeypatch) -> None:
    assert model.check_golden(bundle) <= model.metadata.tolerance
    call = _idle_call(model)

    class Otherwise:
        replace_output = call._fallback.replace_output

        def __call__(self) -> None:
            for array in call.outputs:
                array[...] = 3

    monkeypatch.setattr(call, "_fallback", Otherwise())
    with pytest.raises(AccuracyError, match="must equal the golden output"):
        model.check_golden(bundle)


def test_callers_in_c_get_the_fallback_too(model, bundle) -> None:
    """``tvmopt_run`` is what programs in C and ONNX Runtime call."""
    executor = model._caller.executor
    image = _planted(np.inf)
    call = _idle_call(model)
    for array in call.inputs.values():
        array[...] = image
    results = [executor.empty(spec) for spec in model.metadata.outputs]
    executor.bind("run", list(call.inputs.values()), results)()
    for got, want in zip(results, model(image), strict=True):
        np.testing.assert_array_equal(got, want)
    executor.bind("main", list(call.inputs.values()), results)()
    assert any(
        np.isnan(got).sum() > np.isnan(want).sum()
        for got, want in zip(results, model(image), strict=True)
    )


def test_the_check_has_compiled_what_the_build_stage_would(folder, bundle, tmp_path) -> None:
    assert kept_library.find(folder / "convert", _TARGET) is not None
    other = tmp_path / "folder"
    shutil.copytree(folder / "convert", other / "convert")
    shutil.rmtree(other / "convert" / kept_library.FOLDER)
    again = _built(other, tmp_path / "out")
    assert (again / LIBRARY_FILE).read_bytes() == (bundle / LIBRARY_FILE).read_bytes()


def test_no_winograd_no_fallback(conv_bundle, folder, tmp_path) -> None:
    assert not load(conv_bundle)._caller.has_fallback
    assert not load(_built(folder, tmp_path / "out", schedule="none"))._caller.has_fallback


@pytest.mark.parametrize(
    ("last", "target", "wanted"),
    [("Relu", "host", True), ("ArgMax", "host", False), ("Relu", "nvidia-h200", False)],
)
def test_who_gets_a_fallback(make_model, last, target, wanted) -> None:
    """There is no fallback where no output can hold NaN, or on a GPU."""
    weight = np.full((64, 64, 3, 3), 0.1, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node(last, ["a"], ["y"], name="last"),
    ]
    dtype = "int64" if last == "ArgMax" else "float32"
    model = make_model(nodes, {"x": ("float32", [*_SHAPE])}, {"y": (dtype, None)}, {"w": weight})
    layout = "NHWC" if target == "host" else "NCHW"
    mod = convert_module(import_onnx(prepare(model, {}).model), layout=layout).mod
    assert (lower_network(mod, resolve_target(target, 2)).direct is not None) == wanted
