"""The cost model: order of the loops by rows and trees."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.kernels.trees.test_layout import _random
from tvmopt.kernels.trees.form import choose_form
from tvmopt.kernels.trees.layout import lay_out


@pytest.fixture(scope="module")
def layout():
    return lay_out(_random(np.random.default_rng(0), "float32", 5, 100, 6))


@pytest.mark.parametrize(
    ("rows", "in_flight", "parallel"), [(1, True, False), (4, True, False), (100, False, True)]
)
def test_few_rows_walk_through_trees_at_once(layout, rows, in_flight, parallel) -> None:
    form = choose_form(layout, rows)
    assert (form.trees_in_flight, form.parallel) == (in_flight, parallel)


def test_parts_of_a_large_batch_divide_among_threads(layout) -> None:
    assert choose_form(layout, 100).parts == 4
    assert choose_form(layout, 10_000).parts % 16 == 0


def test_threads_share_the_trees_of_a_row_if_there_are_many() -> None:
    many = lay_out(_random(np.random.default_rng(0), "float32", 5, 3000, 6))
    form = choose_form(many, 1)
    assert form.trees_in_flight
    assert form.parallel
    assert 2 <= form.parts <= 16


def test_few_large_trees_of_a_row_are_shared_as_well() -> None:
    """Their nodes lie outside of a core's cache, so that each visit takes longer."""
    one = _random(np.random.default_rng(0), "float64", 5, 60, 6)
    layout = lay_out(one)
    small = dataclasses.replace(layout, depths=np.full(500, 10, np.int32))
    assert not choose_form(small, 1).parallel
    large = dataclasses.replace(small, nodes=np.zeros((1 << 18, 2), np.uint32))
    form = choose_form(large, 1)
    assert (form.trees_in_flight, form.parallel, form.parts) == (True, True, 2)
