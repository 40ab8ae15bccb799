"""Rows in the order of others."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvmopt.row_order import in_order_of

_BOXES = np.arange(20, dtype="float32").reshape(5, 4) * 10
_SCORES = np.array([0.9, 0.8, 0.8, 0.8, 0.1], "float32")
_LABELS = np.array([3, 1, 4, 1, 5])
_WANTED = [_BOXES, _SCORES, _LABELS]


@given(st.permutations(range(5)), st.integers(0, 2))
def test_rows_get_back_to_their_places(order, leading) -> None:
    """In all outputs at once, behind axes of one."""
    shape = (1,) * leading
    wanted = [array.reshape(*shape, *array.shape) for array in _WANTED]
    noisy = [array + 1e-6 if array.dtype.kind == "f" else array for array in wanted]
    found = in_order_of([np.take(a, order, leading) for a in noisy], wanted, 1e-4)
    for ours, theirs in zip(found, noisy, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    "actual",
    [
        [_BOXES[[1, 0, 2, 3, 4]], _SCORES, _LABELS],  # only one output has changed places
        [_BOXES + 5, _SCORES, _LABELS],  # other values
        [_BOXES[:4], _SCORES[:4], _LABELS[:4]],
        [_BOXES * np.nan, _SCORES, _LABELS],
    ],
    ids=["boxes alone", "values", "shape", "NaN"],
)
def test_what_differs_otherwise_stays(actual) -> None:
    for ours, given_ in zip(in_order_of(actual, _WANTED, 1e-4), actual, strict=True):
        np.testing.assert_array_equal(ours, given_)


def test_an_output_without_rows_stays() -> None:
    count = np.array([5])
    found = in_order_of([_SCORES[::-1], count], [_SCORES, count], 1e-4)
    np.testing.assert_array_equal(found[0], _SCORES)
    np.testing.assert_array_equal(found[1], count)


def test_outputs_of_other_numbers_of_rows_stay() -> None:
    found = in_order_of([_SCORES[::-1], _BOXES[:2]], [_SCORES, _BOXES[:2]], 1e-4)
    np.testing.assert_array_equal(found[0], _SCORES[::-1])


def test_equal_infinities_are_equal() -> None:
    rows = np.array([[np.inf, 1.0], [-np.inf, 2.0], [np.nan, 3.0]])
    np.testing.assert_array_equal(in_order_of([rows[::-1]], [rows], 1e-4)[0], rows)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (1, 0, 4)])
def test_outputs_without_values_stay(shape) -> None:
    """NonMaxSuppression that finds nothing gives an array of shape (0, 3)."""
    empty = np.zeros(shape, np.int64)
    [got] = in_order_of([empty], [empty], 1e-3)
    assert got.shape == shape
