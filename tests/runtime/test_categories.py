"""Categories in the runtime: strings to codes and back, and tables in the metadata."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.errors import ArtifactError, ConfigError
from tvmopt.evaluate.dataset import load_dataset
from tvmopt.random_inputs import random_arrays
from tvmopt.runtime.categories import Categories
from tvmopt.runtime.metadata import MOST_BYTES, ModelMetadata, TensorSpec
from tvmopt.tracking.flavor import model_signature
from tvmopt.tracking.serving.body import in_words, read_body
from tvmopt.tracking.serving.refusal import RefusedRequestError

_COLOUR = TensorSpec("colour", (2, 2), "int64", ("red", "green", "grün, blau"))


@given(
    table=st.lists(st.text(), min_size=1, max_size=6, unique=True),
    values=st.lists(st.text(), max_size=8),
)
def test_codes_are_places_in_the_table(table, values) -> None:
    categories = Categories("x", table)
    values = [*values, *table]
    want = [table.index(value) if value in table else -1 for value in values]
    for array in (np.array(values, object), np.array(values, np.dtypes.StringDType())):
        codes = categories.encode(array.reshape(1, -1))
        assert (codes.dtype, codes.tolist()) == (np.dtype("int64"), [want])
    texts = categories.decode(np.array([*range(len(table)), -1]))
    # NumPy ends a text of fixed width at its last character but NUL.
    assert texts.tolist() == [text.rstrip("\0") for text in [*table, ""]]


def test_objects_are_strings_as_in_onnxruntime() -> None:
    array = np.array([["nan", np.nan], [None, 3]], object)
    assert Categories("x", ["nan", "None", "3"]).encode(array).tolist() == [[0, 0], [1, 2]]


@pytest.mark.parametrize("array", [np.zeros(2), np.array([b"a"]), np.array([True])])
def test_other_values_are_refused(array) -> None:
    with pytest.raises(ConfigError, match="input 'x' must hold strings, or int64 codes"):
        Categories("x", ["a"]).encode(array)


def _with_categories(bundle):
    metadata = ModelMetadata.read(bundle)
    label = TensorSpec("label", (2,), "int64", ("no", "yes"))
    scores = TensorSpec("scores", (2, 2), "float32", columns=("no", "yes"))
    return dataclasses.replace(
        metadata, inputs=(_COLOUR,), outputs=(label, scores), sizes=(), any_rows=False
    )


def test_metadata_keeps_the_tables(conv_bundle, tmp_path) -> None:
    metadata = _with_categories(conv_bundle)
    metadata.write(tmp_path)
    assert ModelMetadata.read(tmp_path) == metadata
    # An older version of this package would give codes for strings, so it must refuse the file.
    assert json.loads((tmp_path / "model.json").read_text())["format"] == 2
    ModelMetadata.read(conv_bundle).write(tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["format"] == 1


def test_the_signature_of_mlflow_has_strings(conv_bundle) -> None:
    signature = model_signature(_with_categories(conv_bundle))
    assert [spec.type for spec in signature.inputs.inputs] == [np.dtype("str")]
    kinds = [spec.type for spec in signature.outputs.inputs]
    assert kinds == [np.dtype("str"), np.dtype("float32")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"categories": ["a", "a"]}, "a category of colour is there twice"),
        ({"categories": ["a", 1]}, "categories or columns are no list of strings"),
        ({"categories": "ab"}, "categories or columns are no list of strings"),
        ({"columns": [None]}, "categories or columns are no list of strings"),
        ({"dtype": "float32"}, "codes of colour are float32"),
        ({"categories": ["a" * (MOST_BYTES + 1)]}, "have more than 4000000 characters"),
    ],
)
def test_damaged_tables(conv_bundle, tmp_path, change, message) -> None:
    _with_categories(conv_bundle).write(tmp_path)
    data = json.loads((tmp_path / "model.json").read_text())
    data["inputs"][0].update(change)
    (tmp_path / "model.json").write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match=message):
        ModelMetadata.read(tmp_path)


def test_data_may_hold_strings(tmp_path) -> None:
    values = np.array([["red", "pink"], ["grün, blau", "green"]])
    np.savez(tmp_path / "data.npz", colour=values)
    dataset = load_dataset(tmp_path / "data.npz", [_COLOUR])
    np.testing.assert_array_equal(dataset.arrays["colour"], [[0, -1], [2, 1]])
    np.savez(tmp_path / "data.npz", colour=np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="must hold strings, or int64 codes"):
        load_dataset(tmp_path / "data.npz", [_COLOUR])


def test_random_inputs_are_codes() -> None:
    spec = dataclasses.replace(_COLOUR, shape=(200,))
    assert set(random_arrays([spec], 0, "normal")["colour"]) == {-1, 0, 1, 2}
    assert set(random_arrays([spec], 0, "zeros")["colour"]) == {0, 1, 2}


def test_requests_hold_strings() -> None:
    body = {"inputs": {"colour": [["red", "pink"], ["grün, blau", "green"]]}}
    found = read_body(json.dumps(body).encode(), [_COLOUR])["colour"]
    np.testing.assert_array_equal(found, [[0, -1], [2, 1]])
    assert in_words([_COLOUR]) == "'colour' (text 2x2)"
    body = {"inputs": {"colour": [["red", 1], ["red", "red"]]}}
    with pytest.raises(RefusedRequestError, match="must be text of shape 2x2, but holds a whole"):
        read_body(json.dumps(body).encode(), [_COLOUR])
