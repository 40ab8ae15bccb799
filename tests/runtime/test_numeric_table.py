"""Tables of numbers: read at once as column by column, or not at all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tvmopt.errors import ConfigError
from tvmopt.runtime.interface import SourceColumn, SourceInterface
from tvmopt.runtime.numeric_table import numbers_of

NAMES = ["a", "b", "c"]
_COLUMNS = tuple(SourceColumn(name, "x", place) for place, name in enumerate(NAMES))
_INTERFACE = SourceInterface("xgboost", "", None, _COLUMNS, "values", "y", None, "float32", True)
_DTYPES = st.sampled_from(["float32", "float64", "int64", "uint64", "int8", "bool"])


def _by_column(interface: SourceInterface, data, dtype: str) -> np.ndarray:
    """Return the input as it is read column by column, from a mapping."""
    columns = {name: np.asarray(data[name]) for name in NAMES}
    return interface.inputs(columns, {"x": dtype})["x"]


@given(st.data(), st.sampled_from(["float32", "float64"]))
def test_a_table_gives_what_its_columns_give(data, dtype) -> None:
    rows = data.draw(st.integers(1, 3))
    table = pandas.DataFrame(
        {name: data.draw(arrays.arrays(data.draw(_DTYPES), rows)) for name in NAMES}
    )
    with np.errstate(over="ignore"):
        got = _INTERFACE.inputs(table, {"x": dtype})["x"]
        want = _by_column(_INTERFACE, table, dtype)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype == dtype


@given(arrays.arrays(_DTYPES, (2, 3)))
def test_an_array_gives_what_its_columns_give(array) -> None:
    with np.errstate(over="ignore"):
        got = _INTERFACE.inputs(array, {"x": "float32"})["x"]
        want = _by_column(_INTERFACE, dict(zip(NAMES, array.T, strict=True)), "float32")
    np.testing.assert_array_equal(got, want)
    assert not np.shares_memory(got, array)
    assert got.flags.c_contiguous


def test_tables_of_numbers_are_read_at_once() -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for data in (values, pandas.DataFrame(values, columns=NAMES)):
        np.testing.assert_array_equal(numbers_of(data, NAMES, finite=True), values)
    mixed = pandas.DataFrame({"a": [1, 2], "b": [0.5, np.nan], "c": np.float32([1, 2])})
    np.testing.assert_array_equal(
        numbers_of(mixed, NAMES, finite=False), [[1, 0.5, 1], [2, np.nan, 2]]
    )


_ONES = pandas.DataFrame(np.ones((2, 3)), columns=NAMES)


@pytest.mark.parametrize(
    ("data", "finite"),
    [
        (_ONES[["b", "a", "c"]], False),
        (_ONES.assign(d=1), False),
        (_ONES.assign(c=["x", "y"]), False),
        (_ONES.assign(c=pandas.array([1, None], "Int64")), False),
        (_ONES.assign(b=[2**53 + 1, 0]), False),  # joined with floats, it would be rounded twice
        (_ONES.assign(b=[np.nan, 0]), True),
        (_ONES[:0], False),
        (np.ones((2, 4)), False),
        (np.ones(3), False),
        (np.full((2, 3), np.inf), True),
        (np.full((2, 3), "x"), False),
        ([[1, 2, 3]], False),
        ({"a": [1], "b": [1], "c": [1]}, False),
    ],
)
def test_others_are_read_column_by_column(data, finite) -> None:
    assert numbers_of(data, NAMES, finite=finite) is None


def test_other_tables_are_still_read_or_refused_by_column() -> None:
    swapped = pandas.DataFrame({"c": [3.0], "a": [1.0], "b": [2.0], "more": [4.0]})
    np.testing.assert_array_equal(_INTERFACE.inputs(swapped, {"x": "float32"})["x"], [[1, 2, 3]])
    strict = (_COLUMNS[0], dataclasses.replace(_COLUMNS[1], missing=False), _COLUMNS[2])
    interface = dataclasses.replace(_INTERFACE, columns=strict)
    holes = np.float32([[np.nan, 1, 2], [0, 1, np.inf]])
    np.testing.assert_array_equal(interface.inputs(holes, {"x": "float32"})["x"], holes)
    with pytest.raises(ConfigError, match=r"'b' must hold no missing values.*1 of 2"):
        interface.inputs(holes[:, [1, 0, 2]], {"x": "float32"})
    with pytest.raises(ConfigError, match=r"shape \(rows, 3\).*got \(2, 2\)"):
        interface.inputs(holes[:, :2], {"x": "float32"})
    small = dataclasses.replace(_COLUMNS[2], largest=1e3)
    interface = dataclasses.replace(_INTERFACE, columns=(*_COLUMNS[:2], small))
    endless = np.float32([[2000, 1, np.inf]])
    np.testing.assert_array_equal(interface.inputs(endless, {"x": "float32"})["x"], endless)
    for column, value in enumerate((1e9, 1e9, 2e3)):
        table = np.zeros((2, 3))
        table[1, column] = value
        if column < 2:
            np.testing.assert_array_equal(interface.inputs(table, {"x": "float32"})["x"], table)
    with pytest.raises(ConfigError, match="'c' must hold numbers of at most 1000 in magnitude"):
        interface.inputs(table, {"x": "float32"})
