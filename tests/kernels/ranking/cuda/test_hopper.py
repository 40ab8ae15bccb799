"""Ranking of the Hopper configurations."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter

import pytest

from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.pixels import why_not as why_not_conv
from tvmopt.kernels.cuda.hopper.problem import GemmProblem
from tvmopt.kernels.cuda.hopper.ranking import conv_configs, gemm_configs

H200 = GPUS["nvidia-h200"]


@pytest.mark.sample(4)
@pytest.mark.parametrize(
    "problem",
    [
        GemmProblem(4096, 4096, 4096),
        GemmProblem(1000, 1000, 1000),
        GemmProblem(1, 4096, 4096),
        GemmProblem(77, 1001, 136),
        GemmProblem(512, 64, 512, batch=96, trans_b=False),
        GemmProblem(4096, 4096, 4096, dtype="int8", out="int32"),
        GemmProblem(1024, 512, 512, dynamic=True),
        GemmProblem(8, 8, 8),
        GemmProblem(1001, 777, 1003),
        GemmProblem(64, 1000, 17, dtype="int8", out="int32", trans_b=False),
    ],
)
def test_every_gemm_has_configurations_that_fit(problem):
    ranked = gemm_configs(problem, H200)
    assert ranked
    assert [r.cycles for r in ranked] == sorted(r.cycles for r in ranked)
    for one in ranked[:20]:
        assert one.hint.why_not(problem) is None
        assert len(one.facts) == 4
    assert len({r.hint.config_id for r in ranked}) == len(ranked)


def test_a_large_gemm_takes_large_tiles():
    hint = gemm_configs(GemmProblem(8192, 8192, 8192), H200)[0].hint
    assert hint.tile_m * hint.tile_n >= 128 * 192
    assert not hint.swap_ab and hint.split_k == 1 and not hint.smem_store


def test_mn_major_operands_take_tiles_that_fill_one_wave():
    problem = GemmProblem(768, 3072, 4096, trans_a=True, trans_b=False)
    hint = gemm_configs(problem, H200)[0].hint
    assert hint.whole_blocks and (hint.tile_m, hint.tile_n, hint.loaded_n) == (128, 144, 192)
    # 6 x 22 tiles on 132 SMs.
    assert (768 // hint.tile_m) * math.ceil(3072 / hint.tile_n) == H200.sms
    k_major = gemm_configs(dataclasses.replace(problem, trans_b=True), H200)
    assert not any(r.hint.whole_blocks for r in k_major)


@pytest.mark.parametrize("rows", [6000, 6400])
def test_one_cluster_reads_the_larger_operand(rows):
    # Two clusters of an operand of 0.4 of L2 would read it twice.
    hint = gemm_configs(GemmProblem(rows, 128, 2048, trans_b=False), H200)[0].hint
    assert hint.swap_ab and hint.cluster_m * hint.tile_m >= 128


def test_few_rows_swap_a_and_b():
    hint = gemm_configs(GemmProblem(16, 4096, 14336), H200)[0].hint
    assert hint.swap_ab and hint.tile_n == 16


@pytest.mark.parametrize(
    ("rows", "swapped"), [(128, True), (300, True), (320, False), (1000, False)]
)
def test_m_with_much_padding_may_swap_a_and_b(rows, swapped):
    ranked = gemm_configs(GemmProblem(rows, 5000, 2000), H200)
    assert any(r.hint.swap_ab for r in ranked) == swapped


def test_an_mn_major_b_may_swap_a_and_b():
    ranked = gemm_configs(GemmProblem(1000, 1000, 1000, trans_b=False), H200)
    assert any(r.hint.swap_ab for r in ranked)
    assert not any(r.hint.swap_ab for r in gemm_configs(GemmProblem(1000, 1000, 1000), H200))


@pytest.mark.parametrize(("depth", "multicast"), [(1000, True), (1024, False)])
def test_unaligned_rows_are_multicast(depth, multicast):
    config = gemm_configs(GemmProblem(1000, 1000, depth), H200)[0].hint
    assert (config.multicast_size > 1) == multicast


def test_larger_clusters_are_listed_only_at_a_small_predicted_cost():
    cycles = {}
    for ranked in gemm_configs(GemmProblem(1000, 1000, 1000), H200):
        config = ranked.hint
        if config.raster_group == 8:
            alike = dataclasses.replace(config, cluster_m=1, cluster_n=1, wgmma_wait_depth=1)
            cycles.setdefault(alike, {})[config.multicast_size] = ranked.cycles
    several = [by_size for by_size in cycles.values() if len(by_size) > 1]
    assert several
    for by_size in several:
        assert by_size[max(by_size)] < 1.03 * min(by_size.values())


def test_clusters_predicted_nearly_as_fast_are_tried():
    # On an H200 4 x 2 took 11.3 us and 2 x 2 12.4, which the model has as equal.
    first = gemm_configs(GemmProblem(3000, 200, 4000), H200)[:20]
    assert {(2, 2), (4, 2)} <= {(r.hint.cluster_m, r.hint.cluster_n) for r in first}


@pytest.mark.parametrize(
    ("tile", "size", "raster"),
    [((64, 256), 2048, 8), ((64, 128), 1024, 4), ((256, 64), 1024, 2), ((64, 256), 16384, 8)],
)
def test_raster_groups(tile, size, raster):
    found = [
        r.hint
        for r in gemm_configs(GemmProblem(size, size, size), H200)
        if (r.hint.tile_m, r.hint.tile_n) == tile and r.hint.cluster_size == 1
    ]
    # Of the two best others are tried, too.
    assert Counter(hint.raster_group for hint in found).most_common(1)[0][0] == raster


def test_a_narrow_c_has_tiles_of_every_width():
    def widths(columns):
        return {r.hint.tile_n for r in gemm_configs(GemmProblem(3000, columns, 4000), H200)}

    assert 104 in widths(200) and 104 not in widths(2000)


def test_cluster_split_k_has_both_stores():
    ranked = gemm_configs(GemmProblem(777, 1024, 4096), H200)
    clustered = [r.hint for r in ranked if r.hint.cluster_split_k > 1]
    assert {hint.smem_store for hint in clustered} == {False, True}


def test_one_tile_a_block_costs_more_than_persistent():
    ranked = gemm_configs(GemmProblem(5000, 5000, 1024), H200)
    of = {
        r.hint.persistent: r.cycles
        for r in reversed(ranked)
        if (r.hint.tile_m, r.hint.tile_n) == (128, 128)
        and r.hint.smem_store
        and r.hint.split_k == 1
    }
    assert of[False] > of[True]


def test_more_work_costs_more():
    small, large = (gemm_configs(GemmProblem(m, 4096, 4096), H200)[0].cycles for m in (1024, 4096))
    assert 2.0 < large / small < 5.0


@pytest.mark.parametrize(("channels", "filters"), [(256, 256), (32, 64), (48, 41), (3, 64)])
def test_convolutions(channels, filters):
    problem = ConvProblem(128, 14, 14, channels, filters, padding=(1, 1, 1, 1), weight="HWIO")
    ranked = conv_configs(problem, H200)
    assert ranked
    for one in ranked[:20]:
        assert math.prod(one.hint.pixel_box) == one.hint.warpgroup_m
        assert why_not_conv(problem.tiled, one.hint) is None


def test_only_hopper():
    assert gemm_configs(GemmProblem(64, 64, 64), GPUS["nvidia-a100"]) == []
    assert conv_configs(ConvProblem(1, 14, 14, 64, 64), GPUS["nvidia-a100"]) == []
    assert gemm_configs(GemmProblem(64, 64, 63, dynamic=True), H200) == []
