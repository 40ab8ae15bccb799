"""GEMM with AMX tiles against NumPy: every tile shape, strided operands, extreme values."""

from __future__ import annotations

import os

import ml_dtypes
import numpy as np
import pytest

from tests.kernels.cpu.intrinsics.amx.kernels import (
    BF16,
    BY_NAME,
    U8S8,
    build,
    call,
    check,
    dense,
    on_x86_64,
    packed,
    product,
    random,
    shaped,
)

pytestmark = on_x86_64

SHAPES = {
    "full": {},
    "one_column_block": {"column_blocks": 1},
    "one_row_block": {"row_blocks": 1},
    "one_tile": {"row_blocks": 1, "column_blocks": 1},
    "rows_14": {"rows": 14},
    "rows_7_k_48": {"rows": 7, "kbytes": 48},
    "k_40": {"kbytes": 40, "row_blocks": 1},
    "k_24": {"kbytes": 24, "column_blocks": 1},
    "k_4": {"kbytes": 4},
    "one_row": {"rows": 1, "row_blocks": 1},
    "one_row_twice": {"rows": 1},
    "k_4_one_row": {"kbytes": 4, "rows": 1, "row_blocks": 1, "column_blocks": 1},
    "one_row_stride_2": {"step": 2, "rows": 1, "row_blocks": 1},
    "stride_2": {"step": 2, "rows": 7},
    "stride_3": {"step": 3, "row_blocks": 1, "kbytes": 32},
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["u8s8", "bf16"])
def test_dense(target, kind, shape):
    tile = shaped(BY_NAME[kind], **SHAPES[shape])
    rows, columns, depth = 2 * tile.block_rows, 3 * tile.block_columns, 3 * tile.block_k
    rng = np.random.default_rng(0)
    data = random(rng, tile.data, ((rows - 1) * tile.step + 1, depth))
    weight = random(rng, tile.weight, (depth, columns))
    lib = build(dense(tile, rows, columns, depth), target)
    got, counts = call(
        lib, data, packed(weight, tile), np.full((rows, columns), 7, tile.accumulator)
    )
    check(got, data[:: tile.step], weight, tile)
    if counts is not None:
        threads = counts["ldtilecfg"]  # each sets its tiles up once
        assert 1 <= threads <= os.cpu_count()
        blocks, used = 2 * 3, tile.row_blocks * tile.column_blocks
        loads = tile.row_blocks + tile.column_blocks
        assert counts == {
            **dict.fromkeys(counts, 0),
            "ldtilecfg": threads,
            "tilerelease": threads,
            "tilezero": blocks * used,
            "tilestored": blocks * used,
            "tileloadd": blocks * 3 * loads,
            tile.instruction: blocks * 3 * used,
        }


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", BY_NAME)
def test_a_part_of_a_wider_matrix(target, kind):
    """Rows are longer than K, and begin at an odd offset."""
    tile = shaped(BY_NAME[kind], rows=14, kbytes=32)
    rows, columns, depth = 2 * tile.block_rows, 2 * tile.block_columns, 2 * tile.block_k
    rng = np.random.default_rng(1)
    data = random(rng, tile.data, (rows + 5, depth + 13))
    weight = random(rng, tile.weight, (depth, columns))
    lib = build(dense(tile, rows, columns, depth, extra=(5, 13), offset=(3, 7)), target)
    got, _ = call(lib, data, packed(weight, tile), np.zeros((rows, columns), tile.accumulator))
    check(got, data[3 : 3 + rows, 7 : 7 + depth], weight, tile)


@pytest.mark.sample(2)
@pytest.mark.parametrize("kind", sorted(set(BY_NAME) - {"bf16"}))
def test_extremes(target, kind):
    tile = BY_NAME[kind]
    rng = np.random.default_rng(2)
    data = random(rng, tile.data, (32, 512), extremes=True)
    weight = random(rng, tile.weight, (512, 32), extremes=True)
    data[0], weight[:, 0] = np.iinfo(tile.data).max, np.iinfo(tile.weight).max
    data[1], weight[:, 1] = np.iinfo(tile.data).min, np.iinfo(tile.weight).min
    lib = build(dense(tile, 32, 32, 512, parallel=None), target)
    got, _ = call(lib, data, packed(weight, tile), np.zeros((32, 32), np.int32))
    check(got, data, weight, tile)


def test_denormal_bfloat16_is_taken_for_zero(target):
    data = np.full((32, 32), 2.0**-130).astype(ml_dtypes.bfloat16)
    weight = np.full((32, 32), 2.0**120).astype(ml_dtypes.bfloat16)
    assert (data.astype(np.float32) > 0).all()
    lib = build(dense(BF16, 32, 32, 32), target)
    got, _ = call(lib, data, packed(weight, BF16), np.ones((32, 32), np.float32))
    assert not got.any()


def test_a_changed_weight_changes_its_column_alone(target):
    tile = shaped(U8S8, rows=7, kbytes=24)
    rng = np.random.default_rng(3)
    data = random(rng, "uint8", (14, 48)) | 1
    weight = random(rng, "int8", (48, 64))
    lib = build(dense(tile, 14, 64, 48), target)
    for k, column in ((0, 0), (25, 37), (47, 63)):
        changed = packed(weight, tile)
        changed[column // 16, k // 4, column % 16, k % 4] ^= 1
        got, _ = call(lib, data, changed, np.zeros((14, 64), np.int32))
        wrong = got != product(data, weight, tile)
        assert wrong[:, column].all() and wrong.sum() == 14
        with pytest.raises(AssertionError):
            check(got, data, weight, tile)
