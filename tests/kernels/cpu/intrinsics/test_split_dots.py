"""Dot products of several instructions: what the cost model says of their register tiles."""

from __future__ import annotations

import pytest

from tvmopt.device.target import resolve_target
from tvmopt.kernels.cpu.common.cost import split_dot_step
from tvmopt.kernels.cpu.intrinsics import dot_named

DOT = dot_named("tvmopt.pmaddwd_256")
AVX2 = resolve_target("haswell").arch()


def products_a_cycle(rows: int, vectors: int) -> float:
    """Return the byte products of a register tile in each predicted cycle."""
    return rows * vectors * DOT.lanes * DOT.depth / split_dot_step(rows, vectors, DOT, AVX2)


def test_more_rows_share_the_bytes_of_a_weight() -> None:
    assert products_a_cycle(1, 2) < products_a_cycle(2, 2) < products_a_cycle(4, 2)


def test_exact_pairs_take_less() -> None:
    pairs = dot_named("tvmopt.pmaddubsw_256")
    for rows, vectors in ((1, 1), (4, 2), (3, 3)):
        exact = split_dot_step(rows, vectors, pairs, AVX2)
        assert exact < split_dot_step(rows, vectors, DOT, AVX2)


@pytest.mark.parametrize(("rows", "vectors"), [(5, 2), (3, 3)])
def test_a_tile_beyond_the_registers_is_slower(rows: int, vectors: int) -> None:
    # 16 registers hold sums, the even and the odd bytes of a row of weight and of a word of data,
    # and one product
    assert products_a_cycle(rows, vectors) < products_a_cycle(rows - 1, vectors)


def test_the_best_tile_beats_the_peak_of_float32() -> None:
    tiles = [(rows, vectors) for rows in range(1, 15) for vectors in range(1, 5)]
    best = max(products_a_cycle(*tile) for tile in tiles)
    peak = AVX2.fma_ports * AVX2.lanes("float32")
    assert peak < best < 2 * peak
