"""Implicit-GEMM convolutions: pixel boxes, refusals, instructions in the emitted CUDA."""

from __future__ import annotations

import pytest

from tests.kernels.cuda.hopper.sources import (
    compile_with_nvcc,
    conv_config,
    cuda_source,
    gemm_config,
)
from tvmopt.kernels.cuda.hopper.conv import conv
from tvmopt.kernels.cuda.hopper.conv_problem import ConvProblem
from tvmopt.kernels.cuda.hopper.pixels import boxes
from tvmopt.kernels.workload import Refusal

CONFIG = conv_config(gemm_config(tile_n=64, epilogue_buffers=1))


def test_boxes_waste_little():
    assert boxes(ConvProblem(128, 56, 56, 64, 64, padding=(1, 1, 1, 1)), 64)[0] == (1, 8, 8)
    n, h, w = boxes(ConvProblem(128, 14, 14, 256, 256, padding=(1, 1, 1, 1)), 64)[0]
    assert 14 % h == 14 % w == 128 % n == 0 and n * h * w == 64
    assert boxes(ConvProblem(64, 7, 7, 512, 512, padding=(1, 1, 1, 1)), 64)[0] == (64, 1, 1)


def test_out_size():
    problem = ConvProblem(1, 224, 224, 8, 8, (7, 7), (2, 2), (3, 3, 3, 3))
    assert problem.out_size == (112, 112)
    assert ConvProblem(1, 20, 30, 8, 8, (3, 3), dilation=(2, 2)).out_size == (16, 26)


@pytest.mark.sample(1)
@pytest.mark.parametrize("weight", ["OHWI", "HWIO"])
def test_instructions(weight, tmp_path):
    problem = ConvProblem(3, 13, 9, 24, 40, stride=(2, 1), padding=(1, 1, 1, 1), weight=weight)
    source = cuda_source(conv(problem, CONFIG))
    assert "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16" in source
    assert "cp.async.bulk.tensor.4d.shared::cluster.global" in source
    assert "cp.async.bulk.tensor.3d.shared::cluster.global" in source
    assert "cp.async.bulk.tensor.4d.global.shared::cta" in source
    if compile_with_nvcc(source, tmp_path) is None:
        pytest.skip("nvcc is not installed")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"channels": 20, "filters": 1, "height": 20000, "width": 20000}, "a copy of the image"),
        ({"weight": "OIHW"}, "must be OHWI or HWIO"),
        ({"height": 2}, "larger than the padded input"),
        ({"stride": (9, 9)}, "stride is at most 8"),
        ({"dtype": "float64"}, "no pair of types"),
    ],
)
def test_refused(fields, reason):
    plain = {"images": 1, "height": 14, "width": 14, "channels": 64, "filters": 64}
    found = conv(ConvProblem(**{**plain, **fields}), CONFIG)
    assert isinstance(found, Refusal) and reason in found.reason


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (gemm_config(cluster_m=2), "no swapped A and B, multicast"),
        (
            gemm_config(consumer_warpgroups=1, m_atoms=3, tile_n=64, epilogue_buffers=1),
            "a pixel box has 64 or 128",
        ),
        (gemm_config(tile_n=96, epilogue_buffers=1), "a multiple of 64"),
    ],
)
def test_refused_configurations(config, reason):
    found = conv(ConvProblem(1, 14, 14, 64, 128, weight="HWIO"), conv_config(config))
    assert isinstance(found, Refusal) and reason in found.reason
