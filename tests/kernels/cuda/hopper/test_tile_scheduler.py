"""Rasterisation order of the tile scheduler."""

from __future__ import annotations

import numpy as np
import pytest
import tvm_ffi
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import sym, tirx

from tests.kernels.cuda.hopper.sources import gemm_config
from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hopper.tile_scheduler import (
    RASTER_GROUPS,
    lines_read,
    ranked_raster_groups,
    tile_of,
)

EXTENTS = st.integers(1, 40)


@given(EXTENTS, EXTENTS, st.sampled_from(RASTER_GROUPS))
def test_every_tile_is_computed_once(down, across, group):
    tiles = {tile_of(number, down, across, group) for number in range(down * across)}
    assert tiles == {(row, column) for row in range(down) for column in range(across)}


@settings(deadline=None)
@given(EXTENTS, EXTENTS, st.sampled_from(RASTER_GROUPS))
def test_arrays_and_ints_give_the_same_order(down, across, group):
    numbers = np.arange(down * across)
    rows, columns = tile_of(numbers, down, across, group)
    found = list(zip(rows.tolist(), columns.tolist(), strict=True))
    assert found == [tile_of(number, down, across, group) for number in numbers.tolist()]


@settings(deadline=None, max_examples=50)
@given(EXTENTS, EXTENTS, st.sampled_from(RASTER_GROUPS))
def test_a_gpc_reads_each_row_and_column_of_tiles_once(down, across, group):
    arch, tile = GPUS["nvidia-h200"], (64, 128)
    count = min(down * across, arch.gpc_sms * arch.gpcs)
    places = [tile_of(number, down, across, group) for number in range(count)]
    read = 0
    for size in (arch.gpc_sms // 2, arch.gpc_sms):
        for first in range(0, count, size):
            rows, columns = zip(*places[first : first + size], strict=True)
            read += tile[0] * len(set(rows)) + tile[1] * len(set(columns))
    assert lines_read(arch, tile, down, across, group) == read


@pytest.mark.parametrize(("down", "across"), [(3, 7), (16, 8), (47, 2), (13, 9)])
@pytest.mark.parametrize("group", RASTER_GROUPS)
def test_expressions_and_ints_give_the_same_order(down, across, group):
    number = tirx.Var("number", "int32")
    row, column = tile_of(number, down, across, group)
    analyzer = sym.Analyzer()
    for n in range(down * across):
        known = (tirx.Var, lambda var, n=n: tirx.const(n, "int32"))
        got = [int(analyzer.simplify(tvm_ffi.structural_map(e, known))) for e in (row, column)]
        assert tuple(got) == tile_of(n, down, across, group)


def test_few_columns_are_row_major():
    assert [tile_of(n, 47, 2, 8) for n in range(4)] == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_square_raster_groups_read_less():
    h200 = GPUS["nvidia-h200"]
    square, column = (lines_read(h200, (64, 128), 32, 16, raster) for raster in (4, 1))
    assert square < column


def test_equal_orders_are_listed_once():
    # Two rows of tiles: more than two cannot be side by side.
    assert len(ranked_raster_groups(gemm_config(consumer_warpgroups=1, tile_n=128), 128, 4096)) == 2
    assert ranked_raster_groups(
        gemm_config(consumer_warpgroups=1, tile_n=128, cluster_m=2), 4096, 4096
    ) == (8,)
