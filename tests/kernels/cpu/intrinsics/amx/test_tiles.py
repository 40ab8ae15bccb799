"""Tests of AMX tile intrinsics: selection by dtype, names, rejected shapes."""

from __future__ import annotations

import dataclasses

import pytest
from tvm import s_tir

from tests.kernels.cpu.intrinsics.amx.kernels import BF16, U8S8, on_x86_64, shaped
from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.intrinsics import TILES, find_tile, largest_step

pytestmark = on_x86_64


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: tile.name)
def test_find_tile(tile):
    arch = CpuArch("sapphirerapids", "x86_64", 1, 512, 32)
    assert find_tile(arch, tile.data, tile.weight) is tile
    without = dataclasses.replace(arch, mattr=tuple(f"-{f}" for f in tile.features))
    assert find_tile(without, tile.data, tile.weight) is None
    assert find_tile(CpuArch("znver4", "x86_64", 1, 512, 32), tile.data, tile.weight) is None
    assert find_tile(arch, "float32", "float32") is None


def test_find_tile_knows_the_family():
    arch = CpuArch("cortex-a76", "aarch64", 1, 128, 32, mtriple="aarch64-linux-gnu")
    assert find_tile(arch, "uint8", "int8") is None


def test_names_are_stable_and_tell_shapes_apart():
    tile = shaped(U8S8, rows=9)
    assert tile.multiply == tile.multiply  # registered once
    changes = [{"kbytes": 4}, {"step": 2}, {"line_step": 1}, {"taps": 2}, {"weight_axes": 1}]
    others = [tile, U8S8, BF16, *(shaped(tile, **change) for change in changes)]
    others += [shaped(BF16, data_as="uint16"), shaped(BF16, weight_as="uint16")]
    assert len({other.multiply for other in others}) == len(others)
    assert s_tir.TensorIntrin.get(tile.zero) is not None


@pytest.mark.parametrize(
    ("nbytes", "step"), [(64, 64), (24, 24), (40, 40), (80, 40), (144, 48), (512, 64), (3, None)]
)
def test_largest_step(nbytes, step):
    assert largest_step(nbytes) == step


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows of a tile intrinsic must be 1 to 16, but got 0"),
        ({"rows": 17}, "rows of a tile intrinsic must be 1 to 16, but got 17"),
        ({"row_blocks": 3}, "row_blocks of a tile intrinsic must be 1 or 2, but got 3"),
        ({"column_blocks": 0}, "column_blocks of a tile intrinsic must be 1 or 2, but got 0"),
        ({"kbytes": 6}, "kbytes of a tile intrinsic must be a multiple of 4 up to 64, but got 6"),
        ({"kbytes": 68}, "a multiple of 4 up to 64, but got 68"),
        ({"step": 0}, "step must be at least 1, .* but got .*step=0"),
        ({"line_step": -1}, "line_step, taps and weight_axes 0, but got .*line_step=-1"),
        ({"line_step": 1, "row_blocks": 1}, "2 row blocks of .* got self.row_blocks=1 and .*=16"),
        ({"line_step": 1, "rows": 1}, "at least 2 rows, but got self.row_blocks=2 and .*rows=1"),
        ({"taps": 3}, "groups of 4 for each tap, but got self.kbytes=64 for self.taps=3"),
        ({"data_as": "uint16"}, "only bfloat16 can be kept as uint16, but got uint8"),
    ],
)
def test_wrong_shapes(changes, message):
    with pytest.raises(ValueError, match=message):
        shaped(U8S8, **changes)


def test_properties():
    tile = shaped(BF16, rows=14, kbytes=48, column_blocks=1)
    assert (tile.block_rows, tile.block_columns, tile.block_k) == (28, 16, 24)
    assert tile.function == "tvmopt_amx_r14_k48_tdpbf16ps_2x1"
