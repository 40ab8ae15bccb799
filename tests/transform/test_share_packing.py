"""Sizes of a network that pack their weights alike."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax

from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.module_schedules import schedule_module
from tvmopt.kernels.policies import policy_of
from tvmopt.kernels.shared_packing import PACKED_TILE
from tvmopt.transform.lower import lower
from tvmopt.transform.share_packing import (
    choose_tiles,
    packed_tiles,
    with_tiles,
    without_tiles,
)

ARCH = CpuArch("haswell", "x86_64", 2, 256, 16, l2_bytes=2**19, l2_bandwidth=64.0)
WEIGHT = np.random.default_rng(0).standard_normal((256, 192)).astype("float32")


def _network(rows: int, weight: np.ndarray = WEIGHT) -> tvm.IRModule:
    """Return a lowered network of one matmul with a constant weight."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((rows, len(weight)), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(out)
    return lower(builder.get(), ARCH.to_tvm())


@pytest.fixture(scope="module")
def sizes() -> list[tvm.IRModule]:
    return [_network(rows) for rows in (96, 48)]


def test_sizes_take_one_tile_and_pack_for_it(sizes):
    first, second = choose_tiles(sizes, ARCH, {})
    assert len(first) == 1
    assert first == second
    shapes = []
    for mod, tiles in zip(sizes, (first, second), strict=True):
        scheduled = schedule_module(with_tiles(mod, tiles), ARCH)[0]
        [found] = packed_tiles(scheduled).values()
        assert next(iter(tiles.values())) in found
        shapes.append(found)
    assert shapes[0] == shapes[1]


def test_a_tile_that_the_weight_has_elsewhere_comes_first(sizes):
    [digest] = choose_tiles(sizes, ARCH, {})[0]
    candidates = policy_of(sizes[1]["matmul1"], ARCH).ranked
    near = [one for one in candidates if one.cycles <= 1.1 * candidates[0].cycles]
    tiles = {one.hint.packed_tile for one in near} - {""}
    assert len(tiles) > 1
    for tile in tiles:
        assert choose_tiles(sizes[1:], ARCH, {digest: {tile, "7"}}) == [{digest: tile}]


def test_candidates_of_another_tile_are_left_out(sizes):
    [tiles] = choose_tiles(sizes[:1], ARCH, {})
    noted = with_tiles(sizes[0], tiles)
    [tile] = tiles.values()
    assert str(noted["matmul1"].attrs[PACKED_TILE]) == tile
    assert {one.hint.packed_tile for one in policy_of(noted["matmul1"], ARCH).ranked} == {tile}


def test_notes_are_removed(sizes):
    [tiles] = choose_tiles(sizes[:1], ARCH, {})
    tvm.ir.assert_structural_equal(without_tiles(with_tiles(sizes[0], tiles)), sizes[0])


def test_other_weights_are_not_noted(sizes):
    [tiles] = choose_tiles(sizes[:1], ARCH, {})
    other = _network(96, WEIGHT + 1)
    tvm.ir.assert_structural_equal(with_tiles(other, tiles), other)
