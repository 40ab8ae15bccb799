"""The ranking of Hopper kernels."""

from __future__ import annotations

import dataclasses
from collections import Counter

import pytest

from tvmopt.device.gpus import GPUS
from tvmopt.kernels.cuda.hopper.configs import conv_hints, gemm_hints
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.hints import box_of, config_of
from tvmopt.kernels.cuda.hopper.pixels import why_not as why_not_conv
from tvmopt.kernels.cuda.hopper.problem import GemmProblem

H200 = GPUS["nvidia-h200"]


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
def test_every_product_has_configurations_that_fit(problem):
    ranked = gemm_hints(problem, H200)
    assert ranked
    assert [r.cycles for r in ranked] == sorted(r.cycles for r in ranked)
    for one in ranked[:20]:
        assert config_of(one.hint).why_not(problem) is None
        assert len(one.facts) == 4
    assert len({r.hint.config_id for r in ranked}) == len(ranked)


def test_large_product_takes_large_tiles():
    hint = gemm_hints(GemmProblem(8192, 8192, 8192), H200)[0].hint
    assert hint.block[0] * hint.block[1] >= 128 * 192
    assert not hint.swap and hint.split_k == 1 and not hint.option("staged")


def test_few_rows_change_places():
    hint = gemm_hints(GemmProblem(16, 4096, 14336), H200)[0].hint
    assert hint.swap and hint.block[1] == 16


@pytest.mark.parametrize(
    ("rows", "exchanged"), [(128, True), (300, True), (320, False), (1000, False)]
)
def test_rows_that_would_leave_tiles_empty_may_change_places(rows, exchanged):
    ranked = gemm_hints(GemmProblem(rows, 5000, 2000), H200)
    assert any(r.hint.swap for r in ranked) == exchanged


def test_columns_that_are_not_along_the_depth_may_change_places():
    ranked = gemm_hints(GemmProblem(1000, 1000, 1000, trans_b=False), H200)
    assert any(r.hint.swap for r in ranked)
    assert not any(r.hint.swap for r in gemm_hints(GemmProblem(1000, 1000, 1000), H200))


@pytest.mark.parametrize(("depth", "shared"), [(1000, True), (1024, False)])
def test_loads_are_shared_where_rows_do_not_begin_at_lines_of_l2(depth, shared):
    config = config_of(gemm_hints(GemmProblem(1000, 1000, depth), H200)[0].hint)
    assert (config.sharers > 1) == shared


def test_more_thread_blocks_share_loads_only_where_that_is_modelled_to_cost_little():
    cycles = {}
    for ranked in gemm_hints(GemmProblem(1000, 1000, 1000), H200):
        config = config_of(ranked.hint)
        if config.raster == 8:
            alike = dataclasses.replace(config, cluster=1, beside=1, flight=1)
            cycles.setdefault(alike, {})[config.sharers] = ranked.cycles
    several = [by_sharing for by_sharing in cycles.values() if len(by_sharing) > 1]
    assert several
    for by_sharing in several:
        assert by_sharing[max(by_sharing)] < 1.03 * min(by_sharing.values())


def test_sharing_that_is_modelled_as_nearly_as_good_is_tried():
    # On an H200 4 x 2 took 11.3 us and 2 x 2 12.4, which the model has as equal.
    first = gemm_hints(GemmProblem(3000, 200, 4000), H200)[:20]
    assert {(2, 2), (4, 2)} <= {(r.hint.cluster, r.hint.option("beside", 1)) for r in first}


@pytest.mark.parametrize(
    ("tile", "size", "raster"),
    [((64, 256), 2048, 8), ((64, 128), 1024, 4), ((256, 64), 1024, 2), ((64, 256), 16384, 8)],
)
def test_neighbours_compute_tiles_that_have_few_rows_and_columns(tile, size, raster):
    found = [
        r.hint
        for r in gemm_hints(GemmProblem(size, size, size), H200)
        if r.hint.block == tile and config_of(r.hint).together == 1
    ]
    # Of the two best others are tried, too.
    assert Counter(hint.raster for hint in found).most_common(1)[0][0] == raster


def test_few_columns_have_tiles_of_every_width():
    def widths(columns):
        return {r.hint.block[1] for r in gemm_hints(GemmProblem(3000, columns, 4000), H200)}

    assert 104 in widths(200) and 104 not in widths(2000)


def test_thread_blocks_that_share_a_depth_store_by_the_copy_engine_too():
    ranked = gemm_hints(GemmProblem(777, 1024, 4096), H200)
    divided = [r.hint for r in ranked if r.hint.split_k > 1 and not r.hint.option("apart")]
    assert {hint.option("staged") for hint in divided} == {0, 1}


def test_tiles_by_thread_blocks_of_their_own_cost_more_than_by_one_that_stays():
    ranked = gemm_hints(GemmProblem(5000, 5000, 1024), H200)
    of = {
        bool(r.hint.option("persistent")): r.cycles
        for r in reversed(ranked)
        if r.hint.block == (128, 128) and r.hint.option("staged") and r.hint.split_k == 1
    }
    assert of[False] > of[True]


def test_more_work_costs_more():
    small, large = (gemm_hints(GemmProblem(m, 4096, 4096), H200)[0].cycles for m in (1024, 4096))
    assert 2.0 < large / small < 5.0


@pytest.mark.parametrize(("channels", "filters"), [(256, 256), (32, 64), (48, 41), (3, 64)])
def test_convolutions(channels, filters):
    problem = ConvProblem(128, 14, 14, channels, filters, padding=(1, 1, 1, 1), weight="HWIO")
    ranked = conv_hints(problem, H200)
    assert ranked
    for one in ranked[:20]:
        box = box_of(one.hint)
        assert box is not None and box[0] * box[1] * box[2] == one.hint.warp[0]
        assert why_not_conv(problem.tiled, config_of(one.hint)) is None


def test_only_hopper():
    assert gemm_hints(GemmProblem(64, 64, 64), GPUS["nvidia-a100"]) == []
    assert conv_hints(ConvProblem(1, 14, 14, 64, 64), GPUS["nvidia-a100"]) == []
    assert gemm_hints(GemmProblem(64, 64, 63, dynamic=True), H200) == []
