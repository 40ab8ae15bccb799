"""Conversion compares NaN and infinities with ONNX Runtime, and says where they differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvmopt.arch.target import resolve_target
from tvmopt.config import ConvertConfig
from tvmopt.errors import ConfigError
from tvmopt.frontend.load import load_onnx
from tvmopt.frontend.prepare import prepare
from tvmopt.frontend.reference import Reference
from tvmopt.stages.convert import convert
from tvmopt.stages.nonfinite import SAME, TAG, check_nonfinite, nonfinite_inputs

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPES = "image:1x1x8x8"


@pytest.fixture(scope="module")
def reference():
    """The bundled example in ONNX Runtime."""
    model = prepare(load_onnx(EXAMPLES / "digits_cnn.onnx"), {"image": (1, 1, 8, 8)})
    return Reference(model.reference)


IMAGE = {"image": np.random.default_rng(0).standard_normal((1, 1, 8, 8)).astype(np.float32)}


def test_the_example_says_nan_where_onnx_runtime_does(tmp_path):
    config = ConvertConfig(SHAPES, resolve_target("host", 1).to_dict())
    result = convert(config, EXAMPLES / "digits_cnn.onnx", tmp_path, lambda *_: None)
    assert result.tags[TAG] == SAME
    assert f"NaN and infinities: {SAME}" in result.changed


def test_a_model_that_answers_nan_with_numbers_is_reported(reference):
    def lies(arrays):
        return [np.nan_to_num(output) for output in reference({"image": arrays[0]})]

    said = check_nonfinite(lies, reference, IMAGE)
    assert said.startswith("unlike ONNX Runtime: ")
    assert "on NaN (10 of 10 values)" in said
    assert check_nonfinite(lambda a: reference({"image": a[0]}), reference, IMAGE) == SAME


def test_inputs_hold_what_they_are_called():
    made = dict(nonfinite_inputs({**IMAGE, "ids": np.zeros(3, np.int64)}))
    assert np.isnan(made["NaN"]["image"]).all()
    assert np.isnan(made["one NaN"]["image"]).sum() == 1
    assert (made["+inf"]["image"] == np.inf).all()
    assert all((arrays["ids"] == 0).all() for arrays in made.values())
    assert list(nonfinite_inputs({"ids": np.zeros(3, np.int64)})) == []


def test_data_of_nan_is_called_so(tmp_path):
    data = tmp_path / "nan.npz"
    np.savez(data, image=np.full((30, 1, 8, 8), np.nan, np.float32))
    config = ConvertConfig(SHAPES, resolve_target("host", 1).to_dict())
    with pytest.raises(ConfigError, match="data must hold numbers, but all of a sample of input"):
        convert(config, EXAMPLES / "digits_cnn.onnx", tmp_path, lambda *_: None, data)
