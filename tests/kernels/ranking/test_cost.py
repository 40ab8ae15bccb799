"""Tests of the CPU cost model: memory footprints counted by hand, and monotonic costs."""

from __future__ import annotations

import dataclasses

import hypothesis
import pytest
from hypothesis import strategies as st
from tvm import relax

from tests.kernels.ranking.functions import ARCH, convolution, function, matmul, reads
from tvmopt.device.cpu import CpuArch
from tvmopt.kernels.cpu.common.contraction_form import match_contraction
from tvmopt.kernels.cpu.common.cost import TileNumbers, bandwidth, imbalance, tile_cost
from tvmopt.kernels.cpu.common.region import Region
from tvmopt.kernels.policies import DefaultPolicy
from tvmopt.kernels.workload import Refusal

TILE = TileNumbers(
    rows=6, vectors=4, depth=576, tiles=400, weight_block=576 * 256.0, weight_reuse=200e3,
    weight_uses=50.0, spills=0, data_block=20e3, data_reuse=100e3, out_bytes=3e3, out_run=256.0,
    out_total=800e3, imbalance=1.0, parallel=True, inner=64,
)  # fmt: skip


def _regions(func) -> list[Region]:
    facts, accesses = reads(func)
    return [Region(access, facts) for access in accesses]


@pytest.mark.parametrize(
    ("settings", "tile", "elements"),
    [
        # (n, y, x, c) of the output -> elements of the padded input
        ({"groups": 16}, (1, 8, 8, 16), 10 * 10 * 16),
        ({"groups": 16}, (1, 1, 1, 1), 3 * 3),
        ({"groups": 16, "strides": 2}, (1, 4, 4, 16), 9 * 9 * 16),
        ({"groups": 16, "dilation": 2}, (1, 8, 8, 4), 12 * 12 * 4),
        ({}, (1, 8, 8, 16), 10 * 10 * 16),  # all 16 input channels, whatever the outputs are
        ({}, (1, 1, 4, 64), 3 * 6 * 16),
        ({}, (1, 14, 14, 64), 16 * 16 * 16),  # at most the whole tensor
    ],
)
def test_the_input_that_a_tile_of_a_convolution_reads(settings, tile, elements) -> None:
    outputs = 16 if "groups" in settings else 64
    size = 30 if "dilation" in settings or "strides" in settings else 14
    data, _ = _regions(convolution(size, 16, outputs, padding=1, **settings))
    assert data.bytes(tile) == 4 * elements


def test_the_weight_that_a_tile_of_a_convolution_reads() -> None:
    _, weight = _regions(convolution(padding=1))
    assert weight.bytes((1, 8, 8, 16)) == 4 * 3 * 3 * 16 * 16
    assert weight.bytes((1, 1, 1, 16)) == weight.bytes((1, 14, 14, 16))


def test_what_a_tile_of_a_matmul_reads() -> None:
    data, weight = _regions(matmul(64, 48, 96))
    assert data.bytes((6, 32)) == 4 * 6 * 48
    assert weight.bytes((6, 32)) == 4 * 48 * 32
    assert data.bytes((64, 96)) == 4 * 64 * 48


def test_what_a_tile_of_a_batched_matmul_reads() -> None:
    data, weight = _regions(function(relax.op.matmul, (3, 8, 20), (3, 20, 16)))
    assert data.bytes((1, 4, 16)) == 4 * 4 * 20
    assert weight.bytes((2, 4, 16)) == 4 * 2 * 20 * 16


def test_rows_that_were_made_one_axis_span_several_lines() -> None:
    """y and x of a 1 x 1 convolution are one axis of the tile, of 196 on 14 x 14."""
    form = match_contraction(convolution(14, 16, 64, kernel=1))
    assert not isinstance(form, Refusal)
    data = Region(form.data, form.facts)
    tile = [1] * (len(form.facts.spatial) - 2)
    assert data.bytes((*tile, 10, 64)) == 4 * 10 * 16
    assert data.bytes((*tile, 28, 64)) == 4 * 28 * 16
    assert data.bytes((*tile, 196, 64)) == 4 * 196 * 16


_MORE = ["weight_block", "weight_reuse", "data_block", "data_reuse", "out_bytes", "out_total"]


@hypothesis.given(
    field=st.sampled_from(_MORE), factor=st.floats(1.0, 1000.0), parallel=st.booleans()
)
def test_more_traffic_never_costs_less(field: str, factor: float, parallel: bool) -> None:
    tile = dataclasses.replace(TILE, parallel=parallel)
    more = dataclasses.replace(tile, **{field: getattr(tile, field) * factor})
    assert tile_cost(more, ARCH).total >= tile_cost(tile, ARCH).total


@pytest.mark.parametrize(
    "changes",
    [
        {"imbalance": 1.5},
        {"guarded": True},
        {"spills": 4},
        {"depth": 1152},
        {"tiles": 800},
        {"out_run": 64.0},
        {"weight_uses": 1.0},
        {"rows": 12},  # 48 accumulators: more than registers
        {"parallel": False},
    ],
)
def test_what_makes_a_tile_dearer(changes) -> None:
    worse = tile_cost(dataclasses.replace(TILE, **changes), ARCH).total
    assert worse > tile_cost(TILE, ARCH).total


def test_a_launch_is_too_dear_for_a_small_function() -> None:
    small = dataclasses.replace(TILE, tiles=1, depth=16)
    alone = dataclasses.replace(small, parallel=False)
    assert tile_cost(alone, ARCH).total < tile_cost(small, ARCH).total


def test_a_tile_is_at_least_its_arithmetic() -> None:
    cost = tile_cost(TILE, ARCH)
    assert cost.compute >= TILE.depth * TILE.rows * TILE.vectors / ARCH.fma_ports
    assert cost.total * ARCH.cores >= TILE.tiles * cost.compute


@hypothesis.given(st.floats(1, 1e9), st.floats(1, 1e9))
def test_a_larger_working_set_is_never_faster(one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert bandwidth(small, ARCH) >= bandwidth(large, ARCH)


def test_the_levels_of_the_memory() -> None:
    assert bandwidth(1024, ARCH) == ARCH.l1_bandwidth
    assert bandwidth(ARCH.l2_bytes // 4, ARCH) == ARCH.l2_bandwidth
    assert bandwidth(1e9, ARCH) == ARCH.dram_bandwidth


@pytest.mark.parametrize(
    ("tasks", "cores", "expected"),
    [(8, 2, 1.0), (3, 2, 4 / 3), (1, 2, 2.0), (5, 4, 1.6), (7, 1, 1.0), (100, 8, 104 / 100)],
)
def test_imbalance(tasks: int, cores: int, expected: float) -> None:
    assert imbalance(tasks, cores) == pytest.approx(expected)


@hypothesis.given(st.integers(1, 1000), st.integers(1, 64))
def test_imbalance_is_between_balanced_and_one_core(tasks: int, cores: int) -> None:
    assert 1.0 <= imbalance(tasks, cores) <= cores


@pytest.mark.parametrize(
    ("shares", "elements"),
    [
        # 12 rows of 12 outputs each, from 14 rows of 14 pixels of 16 channels
        ([(1, 6)], 14 * 16),  # rows: one row is shared by the windows at the border
        ([(3, 1), (1, 12)], 14 * 16),
        ([(3, 4)], 14 * 14 * 16 / 2),  # output channels: all data, half of it local
        ([(3, 4), (1, 12)], 14 * 14 * 16 / 2),
        ([(2, 6)], 14 * 8 * 16 / 2),  # columns: half of what was written as rows
        ([], 0),
        ([(0, 1)], 0),
    ],
)
def test_what_other_cores_have_written(shares, elements) -> None:
    data = _regions(convolution())[0]
    two = dataclasses.replace(ARCH, cores=2)
    assert data.remote_bytes((1, 12, 12, 64), shares, two) == 4 * elements


def test_what_no_core_keeps_is_not_remote() -> None:
    data = _regions(convolution())[0]
    small = dataclasses.replace(ARCH, cores=2, l2_bytes=4096)
    assert data.remote_bytes((1, 12, 12, 64), [(3, 4)], small) == 0


@pytest.mark.parametrize("groups", [1, 64])
def test_rows_of_an_image_are_shared_out_rather_than_channels(groups) -> None:
    """With a small weight, the data read from the other core decides."""
    func = convolution(size=58, channels=64, groups=groups)
    two = dataclasses.replace(ARCH, cores=2, l2_bytes=2**21)
    first = DefaultPolicy(func, two).ranked[0].hint
    shared = [
        p
        for p in first.loop_order[: first.parallel_loops]
        if (1, 56, 56, 64)[p] > first.register_tile[p]
    ]
    assert shared[0] == 1


def test_a_broadcast_costs_more_where_an_fma_cannot_do_it() -> None:
    """With AVX2 a tile of 14 rows of one vector is load-bound, and one of 6 rows of two is not."""
    avx2 = dataclasses.replace(ARCH, simd_bits=256, vector_registers=16)
    neon = dataclasses.replace(avx2, isa="aarch64")
    tall, wide = (
        dataclasses.replace(TILE, rows=rows, vectors=vectors) for rows, vectors in ((14, 1), (6, 2))
    )

    def cycles_per_fma(tile: TileNumbers, arch: CpuArch) -> float:
        return tile_cost(tile, arch).compute / (tile.rows * tile.vectors * tile.depth)

    assert cycles_per_fma(tall, avx2) > 1.2 * cycles_per_fma(wide, avx2)
    assert cycles_per_fma(tall, neon) < cycles_per_fma(tall, avx2)


def test_a_contraction_without_a_register_tile_costs_its_multiply_adds() -> None:
    """A convolution over 508 x 1 pixels in NCHW has no register tile: its rows have one element."""
    shapes = (1, 256, 512, 1), (512, 256, 5, 1)
    plain = function(lambda x, w: relax.op.nn.conv2d(x, w), *shapes)
    policy = DefaultPolicy(plain, ARCH)
    assert {one.hint.template for one in policy.ranked} == {
        "contraction", "contraction_in_place", "fallback"
    }  # fmt: skip
    peak = 508 * 512 * 256 * 5 / (ARCH.cores * ARCH.fma_ports * 16)
    assert policy.cycles > 3 * peak
    channels_last = function(
        lambda x, w: relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="HWIO"),
        (1, 512, 1, 256),
        (5, 1, 256, 512),
    )
    assert peak < DefaultPolicy(channels_last, ARCH).cycles < policy.cycles / 2
