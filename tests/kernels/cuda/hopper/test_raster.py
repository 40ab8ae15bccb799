"""The order of tiles."""

from __future__ import annotations

import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from tvm import sym, tirx

from tvmopt.kernels.cuda.hopper.config import Config
from tvmopt.kernels.cuda.hopper.tile_scheduler import RASTERS, lines_read, ranked_rasters, tile_of

EXTENTS = st.integers(1, 40)


@given(EXTENTS, EXTENTS, st.sampled_from(RASTERS))
def test_every_tile_is_computed_once(down, across, group):
    tiles = {tile_of(number, down, across, group) for number in range(down * across)}
    assert tiles == {(row, column) for row in range(down) for column in range(across)}


@pytest.mark.parametrize(("down", "across"), [(3, 7), (16, 8), (47, 2), (13, 9)])
@pytest.mark.parametrize("group", RASTERS)
def test_the_kernel_counts_alike(down, across, group):
    number = tirx.Var("number", "int32")
    row, column = tile_of(number, down, across, group)
    analyzer = sym.Analyzer()
    for n in range(down * across):
        known = (tirx.Var, lambda var, n=n: tirx.const(n, "int32"))
        got = [int(analyzer.simplify(tvm_ffi.structural_map(e, known))) for e in (row, column)]
        assert tuple(got) == tile_of(n, down, across, group)


def test_few_columns_follow_each_other():
    assert [tile_of(n, 47, 2, 8) for n in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_neighbours_that_share_read_less():
    square, column = (lines_read((64, 128), 32, 16, raster) for raster in (4, 1))
    assert square < column


def test_orders_that_are_alike_are_named_once():
    # Two rows of tiles: more than two cannot be side by side.
    assert len(ranked_rasters(Config(1, 1, 128), 128, 4096)) == 2
    assert ranked_rasters(Config(1, 1, 128, cluster=2), 4096, 4096) == (8,)
