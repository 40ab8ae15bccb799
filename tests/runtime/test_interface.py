"""The interface of a source model: tables to tensors, tensors to answers, and its JSON."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.errors import ConfigError
from tvmopt.runtime.interface import SourceColumn, SourceInterface

_COLUMNS = (
    SourceColumn("size", "numbers", 0, infinite=False),
    SourceColumn("age", "numbers", 1, missing=False),
    SourceColumn("city", "words", 0, text=True, allowed=("Bern", "nan")),
)
_INTERFACE = SourceInterface(
    "sklearn", "models:/m/1", None, _COLUMNS, "labels", "label", ("no", "yes"), "<U3",
)  # fmt: skip
_DTYPES = {"numbers": "float32", "words": "int64"}  # codes in compiled code


def _table(**changes):
    return pandas.DataFrame(
        {"age": [3, 4], "city": ["Bern", None], "size": [1.5, np.nan]} | changes
    )


def test_columns_are_found_by_name_and_texts_stay_texts():
    found = _INTERFACE.inputs(_table(), _DTYPES)
    np.testing.assert_array_equal(found["numbers"], np.float32([[1.5, 3], [np.nan, 4]]))
    assert found["words"].tolist() == [["Bern"], ["nan"]]
    assert {name: str(a.dtype) for name, a in found.items()} == _DTYPES | {"words": "object"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": [np.inf, 0]}, "'size' must be finite"),
        ({"age": [np.nan, 1]}, "'age' must hold no missing values.*1 of 2"),
        ({"age": ["x", "y"]}, "'age' must hold numbers"),
        ({"city": ["Bern", "Rome"]}, "'city' must hold categories.*'Rome'"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ConfigError, match=message):
        _INTERFACE.inputs(_table(**changes), _DTYPES)


def test_unknown_texts_where_they_are_accepted():
    anything = dataclasses.replace(_COLUMNS[2], allowed=None)
    found = dataclasses.replace(_INTERFACE, columns=(*_COLUMNS[:2], anything))
    words = found.inputs(_table(city=["Rome", "Bern"]), _DTYPES)["words"]
    assert words.tolist() == [["Rome"], ["Bern"]]


@pytest.mark.parametrize(
    ("values", "holds"), [([1e39, 0.0], "1e\\+39"), ([0.0, -2e300], "-2e\\+300")]
)
def test_numbers_that_are_too_large(values, holds):
    column = dataclasses.replace(_COLUMNS[0], largest=1e38, infinite=True)
    found = dataclasses.replace(_INTERFACE, columns=(column, *_COLUMNS[1:]))
    with pytest.raises(ConfigError, match=rf"'size' must hold numbers of at most 1e\+38.*{holds}"):
        found.inputs(_table(size=values), _DTYPES)
    found.inputs(_table(size=[np.inf, -1e38]), _DTYPES)  # infinities have a rule of their own


def test_missing_columns_and_wrong_shapes():
    with pytest.raises(ConfigError, match=r"'size', 'age', 'city'.*'city' missing"):
        _INTERFACE.inputs(_table().drop(columns="city"), _DTYPES)
    with pytest.raises(ConfigError, match=r"shape \(rows, 3\).*got \(2, 2\)"):
        _INTERFACE.inputs(np.zeros((2, 2)), _DTYPES)
    with pytest.raises(ConfigError, match="at least one row, but holds none"):
        _INTERFACE.inputs(_table()[:0], _DTYPES)


@given(st.lists(st.integers(0, 1), min_size=1, max_size=20))
def test_labels_are_classes_of_the_source(labels):
    got = _INTERFACE.result({"label": np.array(labels)})
    assert got.dtype == "<U3"
    assert got.tolist() == [("no", "yes")[label] for label in labels]


def test_flat_answers_and_tables():
    flat = dataclasses.replace(_INTERFACE, classes=None, dtype="float64", flat=True)
    assert flat.result({"label": np.zeros((4, 1), "float32")}).shape == (4,)
    table = dataclasses.replace(flat, flat=False, as_table=True)
    got = table.result({"label": np.ones((2, 3))}, pandas.Index(["a", "b"]))
    assert got.index.tolist() == ["a", "b"]


def test_json_keeps_all():
    data = json.loads(_INTERFACE.to_json())
    assert SourceInterface.from_dict(data) == _INTERFACE


@pytest.mark.parametrize(
    "change",
    [{"answer": "magic"}, {"dtype": "O8,f4"}, {"columns": 3}, {"columns": [{}]},
     {"source": "\x1b[1m"}, {"signature": "x"}, {"more": 1}, {"dtype": "no dtype"},
     {"words": ["of an older one"]}],
)  # fmt: skip
def test_damaged_json_is_refused(change):
    data = {**json.loads(_INTERFACE.to_json()), **change}
    with pytest.raises((ValueError, TypeError, KeyError)):
        SourceInterface.from_dict(data)
