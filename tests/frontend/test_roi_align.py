"""RoiAlign: the numbers of ONNX Runtime, and no read outside of the image."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tvmopt


def _model(make_model, opset, regions=3, **attributes):
    node = onnx.helper.make_node("RoiAlign", ["x", "rois", "image"], ["y"], **attributes)
    inputs = {
        "x": ("float32", [2, 3, 9, 7]), "rois": ("float32", [regions, 4]),
        "image": ("int64", [regions]),
    }  # fmt: skip
    model = make_model([node], inputs, {"y": ("float32", None)}, {})
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", opset))
    return model


@pytest.fixture
def compiled(make_model):
    def compile_(opset=16, **attributes):
        model = _model(make_model, opset, **attributes)
        return model, tvmopt.compile(model, fallback="refuse")

    return compile_


ATTRIBUTES = [
    (10, {"output_height": 2, "output_width": 3}),
    (16, {"output_height": 3, "output_width": 2, "spatial_scale": 0.5}),
    (16, {"sampling_ratio": 2, "coordinate_transformation_mode": "output_half_pixel"}),
    (16, {"output_height": 4, "output_width": 1, "sampling_ratio": 3, "spatial_scale": 2.0}),
]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("opset", "attributes"), ATTRIBUTES)
def test_equals_onnx_runtime(compiled, opset, attributes):
    model, ours = compiled(opset, **attributes)
    theirs = ort.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    corners = st.lists(st.floats(-12, 24, width=32), min_size=12, max_size=12)

    @settings(max_examples=30, deadline=None)
    @given(corners)
    def check(values):
        feed = {
            "x": rng.standard_normal((2, 3, 9, 7)).astype(np.float32),
            # ONNX Runtime fails where the second corner is before the first.
            "rois": np.sort(np.array(values, np.float32).reshape(3, 2, 2), axis=1).reshape(3, 4),
            "image": np.array([1, 0, 1]),
        }
        np.testing.assert_allclose(ours(feed)[0], theirs.run(None, feed)[0], rtol=1e-4, atol=1e-4)

    check()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38, -3e38])
def test_regions_that_are_not_finite_give_nan(compiled, bad):
    _, ours = compiled()
    for place in range(4):
        rois = np.array([[1, 1, 4, 4]] * 3, np.float32)
        rois[1, place] = bad
        x = np.ones((2, 3, 9, 7), np.float32)
        y = ours({"x": x, "rois": rois, "image": np.zeros(3, np.int64)})[0]
        assert np.isnan(y[1]).all()
        assert (y[[0, 2]] == 1).all()


@pytest.mark.parametrize("bad", [2, -1, 2**40, -(2**62)])
def test_an_image_that_is_not_there_gives_nan(compiled, bad):
    _, ours = compiled()
    x, rois = np.ones((2, 3, 9, 7), np.float32), np.array([[1, 1, 4, 4]] * 3, np.float32)
    y = ours({"x": x, "rois": rois, "image": np.array([0, bad, 1])})[0]
    assert np.isnan(y[1]).all()
    assert (y[[0, 2]] == 1).all()


def test_a_region_of_too_many_samples_gives_nan_at_once(compiled):
    _, ours = compiled()
    x, rois = np.ones((2, 3, 9, 7), np.float32), np.array([[0, 0, 1e9, 1e9]] * 3, np.float32)
    assert np.isnan(ours({"x": x, "rois": rois, "image": np.zeros(3, np.int64)})[0]).all()
