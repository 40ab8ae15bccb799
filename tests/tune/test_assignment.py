"""Tests of the minimisation of unary and pairwise costs over a graph."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvmopt.tune import assignment
from tvmopt.tune.assignment import minimise, total_cost

_COSTS = st.floats(0, 100, allow_nan=False, width=32)


@st.composite
def graphs(draw):
    """Up to six nodes of up to three choices, any edges."""
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=6))
    unary = [draw(st.lists(_COSTS, min_size=n, max_size=n)) for n in sizes]
    pairs = list(itertools.combinations(range(len(sizes)), 2))
    kept = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    pairwise = {}
    for i, j in kept:
        count = sizes[i] * sizes[j]
        values = draw(st.lists(_COSTS, min_size=count, max_size=count))
        pairwise[i, j] = np.array(values).reshape(sizes[i], sizes[j])
    return unary, pairwise


def brute_force(unary, pairwise) -> float:
    choices = itertools.product(*(range(len(costs)) for costs in unary))
    return min(total_cost(choice, unary, pairwise) for choice in choices)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_nothing_is_cheaper(graph) -> None:
    unary, pairwise = graph
    found = minimise(unary, pairwise)
    assert found.exact
    assert found.cost == pytest.approx(total_cost(found.choice, unary, pairwise))
    assert found.cost == pytest.approx(brute_force(unary, pairwise))


@settings(max_examples=30, deadline=None)
@given(graphs())
def test_beyond_its_means_it_is_never_worse_than_a_start(graph) -> None:
    unary, pairwise = graph
    start = [len(costs) - 1 for costs in unary]
    before = assignment._MOST
    assignment._MOST = 0
    try:
        found = minimise(unary, pairwise, [start])
    finally:
        assignment._MOST = before
    assert not found.exact
    assert found.cost <= total_cost(start, unary, pairwise) + 1e-6
    assert found.cost >= brute_force(unary, pairwise) - 1e-6


def test_a_change_is_worth_its_cost_or_not() -> None:
    """In a chain of three, another layout of the middle saves less than two conversions cost."""
    unary = [[10.0, 12.0], [10.0, 7.0], [10.0, 12.0]]
    change = np.array([[0.0, 2.0], [2.0, 0.0]])
    assert minimise(unary, {(0, 1): change, (1, 2): change}).choice == (0, 0, 0)
    assert minimise(unary, {(0, 1): change / 2, (1, 2): change / 2}).choice == (0, 1, 0)


def test_a_long_chain_with_skips_is_exact() -> None:
    """The graph is a residual network of 200 layers, with a skip edge per block."""
    rng = np.random.default_rng(0)
    count = 200
    unary = rng.random((count, 3)).tolist()
    pairwise = {(i, i + 1): rng.random((3, 3)) for i in range(count - 1)}
    pairwise |= {(i, i + 3): rng.random((3, 3)) for i in range(0, count - 3, 3)}
    found = minimise(unary, pairwise)
    assert found.exact
    greedy = [int(np.argmin(costs)) for costs in unary]
    assert found.cost < total_cost(greedy, unary, pairwise)
